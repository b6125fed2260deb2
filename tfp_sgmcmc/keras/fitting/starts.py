"""Where the chains of a network start: fresh initial weights, or given ones."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import inspect
import random as python_random
import threading
from typing import Any
import warnings

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.model import network

__all__ = [
    'Chains', 'are_lost', 'fresh', 'initialisers_seed', 'matching',
    'to_chains', 'warn_of_twins']


_LOCK = threading.RLock()
_GENERATOR = python_random.random.__self__  # type: ignore[attr-defined]
_FUNCTIONS = [
    name for name, function in vars(python_random).items()
    if getattr(function, '__self__', None) is _GENERATOR]


@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
  """Several chains of a network in one `fit`, and where they start.

  Attributes:
    num_chains: Python `int`, k.
    initial_weights: The weights that the chains start from: a list with one
      list of arrays for each chain, as `model.get_weights()` gives. None to
      start chain 0 from the model's weights, and the others from fresh weights
      of the model's initialisers.

  Raises:
    ValueError: If the weights are of another number of chains, or of only one
      chain.
    TypeError: If an argument is of the wrong type.

  #### Examples

  >>> def make_model():
  ...   return keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
  >>> weights = [make_model().get_weights() for _ in range(2)]
  >>> sampling = sgmcmc.keras.PosteriorSampling(
  ...     num_chains=sgmcmc.keras.Chains(2, initial_weights=weights))
  """
  num_chains: int = 1
  _: dataclasses.KW_ONLY
  initial_weights: Sequence[Sequence[Any]] | None = None

  def __post_init__(self):
    number = checks.positive_integer('num_chains', self.num_chains)
    # A frozen dataclass is set this way.
    object.__setattr__(self, 'num_chains', number)
    object.__setattr__(
        self, 'initial_weights', _checked(self.initial_weights, number))


def to_chains(value: 'Chains | int | str') -> Chains | None:
  """What was given as `num_chains`, as `Chains`; None for "auto"."""
  if isinstance(value, str):
    if value != checks.AUTO:
      raise ValueError(
          f'num_chains is {value!r}: it has to be an int of 1 or more, Chains, '
          'or "auto".')
    return None
  return value if isinstance(value, Chains) else Chains(value)


@contextlib.contextmanager
def initialisers_seed(seed: Sequence[int]) -> Iterator[None]:
  """Gives Keras' initialisers, where they have no seed, seeds of a seed.

  They take them from Python's generator, which all threads share: those of
  Dask draw from it whenever they like. So the thread that calls has its own
  here, and one thread at a time.

  Args:
    seed: Two Python `int`s.
  """
  with _LOCK:
    own, thread = python_random.Random(repr(seed)), threading.get_ident()
    before = {name: getattr(python_random, name) for name in _FUNCTIONS}

    def of_thread(name):
      return lambda *args, **kwargs: (
          getattr(own, name) if threading.get_ident() == thread
          else before[name])(*args, **kwargs)

    try:
      for name in _FUNCTIONS:
        setattr(python_random, name, of_thread(name))
      yield
    finally:
      for name, function in before.items():
        setattr(python_random, name, function)


def fresh(
    model: keras.Model, inputs: hints.Data, seed: tf.Tensor, num: int,
) -> list[list[np.ndarray]]:
  """Trainable weights by the model's own initialisers, several times.

  Args:
    model: Built `keras.Model`.
    inputs: The specs of a batch of its inputs.
    seed: Stateless seed, `int32[2]`.
    num: Python `int`, the number of chains.

  Returns:
    weights: For each of the chains 1, ..., `num - 1` a list of arrays, one for
      each of `model.trainable_variables`.

  Raises:
    ValueError: If the model cannot be made once more.
  """
  wanted = [tuple(v.shape) for v in model.trainable_variables]
  found = []
  for k in range(1, num):
    with initialisers_seed(random.fold_in(seed, k).numpy().tolist()):
      weights = _of_clone(model, inputs)
    if [array.shape for array in weights] != wanted:
      raise ValueError(
          f'A copy of the model {model.name!r}, made for its initial weights, '
          f'has weights of shapes {[array.shape for array in weights]}, and '
          f'the model {wanted}. {_GIVE_THEM}')
    found.append(weights)
  return found


_GIVE_THEM = (
    'Give the weights with which the chains start: '
    'num_chains=sgmcmc.keras.Chains(k, initial_weights=['
    'make_model().get_weights() for _ in range(k)]).')


def _of_clone(model, inputs):
  is_compiled = model.compiled
  try:
    # Keras would compile the copy too, which not every loss allows.
    model.compiled = False
    clone = _clone(model)
    if not network.is_built(clone):
      tf.function(clone, autograph=False).get_concrete_function(inputs)
    return network.values(clone.trainable_variables)
  except Exception as error:
    why = [type(error).__name__, *str(error).strip().splitlines()[:1]]
    raise ValueError(
        f'Keras cannot make the model {model.name!r}, of type '
        f'{type(model).__name__}, once more from its configuration, for fresh '
        f'initial weights ({": ".join(why)}). {_GIVE_THEM}') from error
  finally:
    model.compiled = is_compiled


def _clone(model):
  try:
    return keras.models.clone_model(model)
  except TypeError:
    # Keras gives a constructor a dtype, which one without arguments does not
    # take. With arguments Keras knows their defaults, not what was given.
    if inspect.signature(type(model)).parameters:
      raise
    return type(model)()


def _checked(initial_weights, num_chains):
  """The given weights as arrays; raises where they do not fit the chains."""
  if initial_weights is None:
    return None
  if num_chains == 1:
    raise ValueError(
        'initial_weights are given for one chain, which starts from the '
        "model's weights: use model.set_weights, or raise num_chains.")
  if not isinstance(initial_weights, Sequence) or not all(
      isinstance(w, (list, tuple)) for w in initial_weights):
    raise TypeError(
        f'initial_weights is of type {type(initial_weights).__name__}: it has '
        'to be a list with one list of arrays for each chain, as '
        'model.get_weights() gives.')
  if len(initial_weights) != num_chains:
    raise ValueError(
        f'initial_weights has {len(initial_weights)} entries, and num_chains '
        f'is {num_chains}: one list of arrays is needed for each chain.')
  return [
      [_array(f'initial_weights[{k}][{j}]', a) for j, a in enumerate(weights)]
      for k, weights in enumerate(initial_weights)]


def _array(name, value):
  """`value` as an array of numbers; one of bfloat16 stays as it is."""
  array = checks.to_tensor(name, value)
  if array.dtype == tf.string:
    raise TypeError(
        f'{name} holds texts: an array of numbers is needed, as '
        'model.get_weights() gives.')
  return array.numpy()


def matching(
    model: keras.Model,
    initial_weights: Sequence[Sequence[np.ndarray]],
    differing: Sequence[keras.Variable],
) -> Sequence[Sequence[np.ndarray]]:
  """The given weights, where they are of a model.

  Args:
    model: Built `keras.Model`.
    initial_weights: For each chain a list of arrays.
    differing: The variables of the model in which chains may differ.

  Returns:
    initial_weights: The same.

  Raises:
    ValueError: If the shapes are others, or those differ that may not.
  """
  wanted = [tuple(w.shape) for w in model.weights]
  may_differ = {id(v) for v in differing}
  for k, arrays in enumerate(initial_weights):
    shapes = [array.shape for array in arrays]
    if shapes != wanted:
      raise ValueError(
          f'initial_weights[{k}] has arrays of shapes {shapes}, and '
          f'model.get_weights() has {wanted}.')
    for weight, array in zip(model.weights, arrays):
      if id(weight) not in may_differ and not np.array_equal(weight, array):
        raise ValueError(
            f'initial_weights[{k}] has other values for {weight.path!r} than '
            'the model. It is not trained, and all chains predict with one: '
            'give it the values that the model has.')
  return initial_weights


def are_lost(losses: np.ndarray) -> np.ndarray:
  """Which of several chains start far from where the best one does.

  Training may leave a network where some rows have a likelihood of all but
  zero, behind a wall that no sampler climbs, while another has no such row.

  Args:
    losses: The mean losses of the chains on all rows, `[k]`.

  Returns:
    are_lost: `[k]`: where a loss is not finite, or larger than the least by
      more than ten times 1 + |least|.
  """
  finite = np.isfinite(losses)
  if not finite.any():
    return np.zeros_like(finite)
  least = np.min(losses[finite])
  return ~(losses - least <= 10. * (1. + abs(least)))


def warn_of_twins(starts: Sequence[Sequence[np.ndarray]]) -> None:
  """Warns where two chains start at one place.

  Args:
    starts: For each chain a list of arrays.
  """
  for k, arrays in enumerate(starts):
    for j in range(k):
      if all(map(np.array_equal, starts[j], arrays)):
        warnings.warn(
            f'Chains {j} and {k} start from the same weights, so that their '
            'agreement would say little. Leave seeds out of the '
            "initialisers of the model's layers, or pass initial_weights with "
            'other weights for each chain.', stacklevel=2)
        return
