"""What to do where the steps of a chain in `fit` are too large."""

from typing import Any

from tfp_sgmcmc import mcmc
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.keras.fitting import kernel_maker
from tfp_sgmcmc.keras.fitting import settings as settings_lib
from tfp_sgmcmc.keras.heat import found_step

__all__ = ['smaller_steps']

_FINDS = "learning_rate='temperature', which finds a rate in burn-in"
_WHERE_FOUND = (
    'The step size was found in burn-in, and halved where it was too large. '
    'Train longer with the optimizer first (start_epoch), take larger batches, '
    'or give a learning_rate.')


def smaller_steps(settings: settings_lib.Settings) -> str:
  """How to make the steps smaller, by arguments that the user knows.

  Args:
    settings: `Settings`.

  Returns:
    advice: A sentence. Its numbers are the user's own, or a tenth of them.

  #### Examples

  >>> from tfp_sgmcmc.keras.fitting import advice
  >>> from tfp_sgmcmc.keras.fitting import settings
  >>> sampling = sgmcmc.keras.PosteriorSampling(learning_rate=0.5)
  >>> advice.smaller_steps(sampling._settings)
  "Take a smaller learning rate, such as learning_rate=0.05 (it is 0.5), or \
learning_rate='temperature', which finds a rate in burn-in."
  """
  learning_rate = settings.given['learning_rate']
  if isinstance(learning_rate, str) and learning_rate == 'temperature':
    return (
        "learning_rate='temperature' has to start near the posterior: train "
        'longer with the optimizer first (start_epoch), or give the learning '
        'rate as a number.')
  if settings.finds_step:
    return _WHERE_FOUND
  name, value = settings.make_kernel.step_argument
  if isinstance(learning_rate, str):
    said = (
        'Lower the learning rate of the optimizer before sampling begins, '
        "which learning_rate='optimizer' follows")
  elif _is_number(value):
    what = 'learning rate' if name == 'learning_rate' else 'step size'
    said = (f'Take a smaller {what}, such as {name}={float(value) / 10.:.2g} '
            f'(it is {float(value):.3g})')
  elif callable(value):
    said = f'Take a schedule with smaller values as {name}'
  else:
    said = 'Take a smaller step size in the kernel'
  return f'{said}, or {_FINDS}.' if _may_be_found(settings) else f'{said}.'


def _is_number(value: Any) -> bool:
  try:
    checks.positive_number('value', value)
    float(value)
  except (TypeError, ValueError):
    return False
  return not callable(value)


def _may_be_found(settings):
  """Whether the same arguments go with `learning_rate='temperature'`."""
  given = settings.given
  if settings.search is not None:
    return False
  try:
    kernel_maker.KernelMaker(
        given['kernel'] or mcmc.SGHMC, given['num_examples'],
        found_step.START, given['momentum'], given['temperature'],
        found_step.by_temperature(
            found_step.RateByTemperature().target_excess))
  except (TypeError, ValueError):
    return False
  return True
