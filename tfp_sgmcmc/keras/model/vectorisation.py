"""Which models can be vectorised over weights of several chains or draws."""

import keras

from tfp_sgmcmc.internal import compat

__all__ = ['may_be']

# Layers for which an attempt is known to fail, after its cost.
_NEVER = (
    keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D,
    keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose, keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D, keras.layers.SeparableConv1D,
    keras.layers.SeparableConv2D, keras.layers.RNN)


def may_be(model: keras.Model) -> bool:
  """Whether to try: not where a layer is known to have no vectorised form.

  Args:
    model: Built `keras.Model`.

  Returns:
    may_be: Python `bool`.
  """
  return not any(
      isinstance(layer, _NEVER) and layer.trainable_variables
      for layer in compat.all_layers(model))
