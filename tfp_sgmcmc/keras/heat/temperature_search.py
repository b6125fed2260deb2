"""The temperature, chosen by the likelihood of validation data.

From the weights at which sampling begins the chain runs at T = 1 for a fifth
of the epochs; then at T = 1, 0.1, 0.01 and 0.001, in this order, a twenty-fifth
of the epochs each, every temperature from where the one before has come to. The
five draws evenly spaced over the last half of each trial are pooled, and scored
by

  NLL = mean_i l_i,    l_i = - log 1/5 sum_s p(y_i | x_i, theta_s)

of `fit`'s validation data. Two scores in a row above the best one end the
search. Chosen is the highest temperature whose score is above the best one by
no more than the standard error of that difference,

  sd_i (l_i - l_i of the best) / sqrt(n).

The chain goes on at this temperature, from the last draw of its trial.

It begins at T = 1, and chooses the highest T in doubt: where a cold chain
overfits, it takes longer to do so than a trial lasts. A search upwards from
0.001 chose 0.001 in ten of eleven problems, of which T = 1 predicts better in
eight (`docs/recipes.md` has what this search chooses).

What a chain loses at T = 1 it has to gain back at a lower T. In a long fit of
10,000 images it did not: T chosen has an NLL of .059, T = 0 of .037.

Such a search sees what a few draws after a short time are worth. A hot chain
needs more draws to average over than a trial has: T = 1 may be better in the
end than its score. Validation data that come in another order each time make
differences, and so the error, too large, and T too high.

The scale s of the prior N(0, s^2) is not searched for beside T, which does not
pay. Test NLL with T the best of 0.01, 0.03, 0.1, 0.3 and 1, defaults else, two
seeds each (and with noise of sd 0.5 added to the inputs):

  s                       digits, 64-100-10      Covertype, 54-128-128-2
  0.3                     .246, .245  (.8, .8)   .368, .367  (.74, .72)
  1                       .102, .094  (1.3, 1.1) .336, .335  (.99, .97)
  3                       .092, .092  (2.3, 2.1) .331, .331  (1.1, 1.1)
  `learned_scale()`       .115, .090  (2.1, 1.7) .333, .335  (.99, .95)

From s = 1 to 3 it is one per cent of the NLL of Covertype and six of that of
the digits (no more than between seeds), for which the predictions on inputs
unlike those of training are worse.

#### References

[1]: Leo Breiman, Jerome Friedman, Richard Olshen, Charles Stone.
     Classification and Regression Trees. Wadsworth, 1984. Section 3.4.3, the
     1 SE rule.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import leaves as leaves_lib
from tfp_sgmcmc.keras.draws import predictions
from tfp_sgmcmc.keras.draws import samples
from tfp_sgmcmc.keras.model import replicas

__all__ = ['TEMPERATURES', 'TemperatureSearch']

TEMPERATURES = (1., 0.1, 0.01, 0.001)
_NUM_DRAWS = 5
_NUM_WORSE = 2
# Of the epochs: one in so many before the first trial, and for each.
_SHARE_BEFORE, _SHARE = 5, 25
_FEWEST_EPOCHS_AFTER = 2


class TemperatureSearch:
  """The trials, one temperature after another, and what came of them."""

  def __init__(self):
    """Makes a search that has not begun."""
    self._variable, self._now = None, TEMPERATURES[0]
    self._losses, self._weights = [], []
    self._num_epochs = 1
    self._epochs_left = 1
    self._trial, self._steps_of_trial = None, 0
    self._draws = []
    self._ends = []
    self._is_over = False
    self._predictor = None

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    """T at a step, for a kernel."""
    del step
    # Made at its first use: a callback with a variable cannot be pickled.
    if self._variable is None:
      self._variable = tf.Variable(
          self._now, trainable=False, dtype=tf.float32, name='temperature')
    return self._variable.read_value()

  @property
  def state_variables(self) -> list[tf.Variable]:
    """What programs read."""
    return [] if self._variable is None else [self._variable]

  def share(self, other: 'TemperatureSearch') -> None:
    """Writes from here on to the variable that programs of another one read.

    Args:
      other: `TemperatureSearch`.
    """
    self._variable = other._variable  # pylint: disable=protected-access
    self._set(self._now)

  def _set(self, temperature):
    self._now = float(np.float32(temperature))
    if self._variable is not None:
      self._variable.assign(self._now)

  @property
  def is_over(self) -> bool:
    """Whether the temperature has been chosen."""
    return self._is_over

  @property
  def most_steps(self) -> int:
    """The number of steps of the search if all temperatures are tried."""
    end, _ = self._trial
    return end + (len(TEMPERATURES) - 1) * self._steps_of_trial

  @property
  def temperature(self) -> float:
    """T now."""
    return float(f'{self._now:.6g}')

  @property
  def scores(self) -> dict[float, float]:
    """The NLL of each temperature tried, in nats an example."""
    return dict(zip(TEMPERATURES, self._scores().tolist()))

  def begin(self, epochs: int, first: int) -> None:
    """Divides the epochs.

    Args:
      epochs: Python `int`, the number of epochs of `fit`.
      first: Python `int`, how many of them come before the chain.

    Raises:
      ValueError: If they are too few.
    """
    needed = first + 1 + len(TEMPERATURES) + _FEWEST_EPOCHS_AFTER
    if epochs < needed:
      raise ValueError(
          f"temperature='validation' needs {needed} epochs, and fit has "
          f'{epochs}: {first} before sampling begins (start_epoch), one to '
          f'come to rest, one for each of {len(TEMPERATURES)} temperatures, '
          f'and {_FEWEST_EPOCHS_AFTER} for the draws. Raise epochs, or give '
          'the temperature as a number, 0.1 say.')
    self._num_epochs = max(1, epochs // _SHARE)
    before = max(1, min(epochs // _SHARE_BEFORE, (
        epochs - first - len(TEMPERATURES) * self._num_epochs) // 2))
    self._epochs_left = before + self._num_epochs
    self._set(TEMPERATURES[0])

  def begin_epoch(self, first: int, steps: int) -> None:
    """Takes note of where an epoch's steps are, at the beginning of a trial.

    Args:
      first: Python `int`, the number of steps made before.
      steps: Python `int`, the number of steps in an epoch.
    """
    if not self._is_over and self._trial is None:
      self._steps_of_trial = steps * self._num_epochs
      self._trial = first + steps * self._epochs_left, max(
          1, self._steps_of_trial // 2 // _NUM_DRAWS)

  def is_due(self, step: int) -> bool:
    """Whether a step makes a draw of a trial."""
    if self._is_over or self._trial is None:
      return False
    end, spacing = self._trial
    return end >= step > end - _NUM_DRAWS * spacing and (
        (end - step) % spacing == 0)

  def keep(self, weights: Sequence[np.ndarray]) -> None:
    """Takes a draw of each chain: the values of the weights, `[k, ...]`."""
    self._draws.append(list(weights))

  def end_epoch(
      self,
      model: keras.Model,
      assign: Callable[[Sequence[Any], Sequence[np.ndarray]], None],
  ) -> str | None:
    """Scores the trial where it ends; may end the search.

    Args:
      model: The model, which `fit` has just evaluated on its validation data.
      assign: Callable of the weights and of what `keep` took, to put the chains
        where they were.

    Returns:
      what: What there is to say, None where there is nothing.
    """
    self._epochs_left -= 1
    if self._epochs_left or not self._draws:
      return None
    temperature = self.temperature
    losses, self._weights = self._score(model)
    self._losses.append(losses)
    self._ends.append(self._draws[-1])
    self._draws, self._trial = [], None
    self._epochs_left = self._num_epochs
    scores = self._scores()
    best, tried = int(np.argmin(scores)), len(scores)
    said = (
        f'temperature {temperature:g}: NLL {scores[-1]:.4f} on validation data')
    if tried < len(TEMPERATURES) and tried - 1 - best < _NUM_WORSE:
      self._set(TEMPERATURES[tried])
      return f'{said}.'
    if not np.isfinite(scores[best]):
      raise ValueError(
          'None of the temperatures gave predictions that are finite numbers '
          'on the validation data. Take a smaller learning_rate, or look for '
          'NaN in the validation data.')
    chosen = first_as_good(self._losses, self._weights)
    self._set(TEMPERATURES[chosen])
    self._is_over = True
    if chosen < tried - 1:
      assign(model.trainable_variables, self._ends[chosen])
    self._ends = []
    return f'{said}. Chosen: {TEMPERATURES[chosen]:g}.'

  def _scores(self):
    """The NLL of each trial, infinite where predictions are not finite."""
    return _means(self._losses, self._weights)

  def _score(self, model):
    """Minus the log likelihoods of the pooled draws, and weights."""
    if self._predictor is None:  # Compiled once.
      self._predictor = predictions.Predictor(model)
    posterior = samples.PosteriorSamples.from_arrays(
        model, [np.concatenate(values) for values in zip(*self._draws)],
        self._predictor)
    losses, weights = [], []
    for batch in predictions.batches(validation_data(model), 1):
      values = np.float64(posterior.log_likelihood(
          batch[0], batch[1], predictions.length(batch)))
      losses.append(
          np.log(len(values)) - np.logaddexp.reduce(values, axis=0))
      weights.append(predictions.example_weights(batch))
    return np.concatenate(losses), np.concatenate(weights)

  def state(self) -> dict[str, np.ndarray]:
    """What `load_state` takes."""
    return {
        'search/temperatures': np.asarray(TEMPERATURES, np.float32),
        'search/temperature': np.asarray(self._now, np.float32),
        'search/losses': np.asarray(self._losses, np.float64),
        'search/weights': np.asarray(self._weights, np.float64),
        'search/counts': np.asarray([
            self._is_over, self._num_epochs, self._epochs_left,
            *(self._trial or (-1, 1))], np.int64),
        **leaves_lib.named(**{
            'search-ends': _stacked(self._ends),
            'search-draws': _stacked(self._draws)})}

  def load_state(self, state: Mapping[str, np.ndarray]) -> None:
    """Stands where another search stood.

    Args:
      state: Arrays by name, those of its `state` among them.

    Raises:
      ValueError: If the other still searches in another order.
    """
    over, num_epochs, epochs_left, *trial = state['search/counts'].tolist()
    is_same = np.array_equal(
        state.get('search/temperatures', ()),
        np.asarray(TEMPERATURES, np.float32))
    if not (is_same or over):
      raise ValueError(
          'Another version of tfp_sgmcmc began the search for the temperature '
          'in this directory, in another order: it cannot go on. Give another '
          'directory. PosteriorSamples.load(directory, model) reads its draws.')
    self._set(state['search/temperature'])
    # The scores of another order have other names.
    self._losses = list(state['search/losses']) if is_same else []
    self._weights = state['search/weights']
    self._num_epochs, self._epochs_left = num_epochs, epochs_left
    self._is_over = bool(over)
    self._trial = None if trial[0] < 0 else tuple(trial)
    self._ends, self._draws = (
        [list(draw) for draw in zip(*leaves_lib.of_group(state, name))]
        for name in ('search-ends', 'search-draws'))


def first_as_good(losses: Sequence[np.ndarray], weights: np.ndarray) -> int:
  """The first of several whose mean loss is the lowest, up to its error.

  Args:
    losses: Arrays `[n]`, the losses of the same examples by each.
    weights: The examples' weights, `[n]`.

  Returns:
    index: The first k with d <= (sum_i w_i^2 (d_i - d)^2)^(1/2) / sum_i w_i,
      where d_i is by how much its loss of example i is above that of the lowest
      mean, and d the weighted mean of d_i.

  #### Examples

  >>> import numpy as np
  >>> from tfp_sgmcmc.keras.heat import temperature_search
  >>> best = np.zeros([4])
  >>> temperature_search.first_as_good(
  ...     [best + 0.1, best + [-1., 1., -1., 1.2], best], np.ones([4]))
  1
  """
  means = _means(losses, weights)
  best = int(np.argmin(means))
  for k, mean in enumerate(means[:best]):
    if np.isfinite(mean):
      differences = losses[k] - losses[best] - (mean - means[best])
      error = np.linalg.norm(weights * differences) / np.sum(weights)
      if mean - means[best] <= error:
        return k
  return best


def _means(losses, weights):
  """Weighted means of several arrays, infinite where they are not finite."""
  means = np.asarray([np.average(values, weights=weights) for values in losses])
  return np.where(np.isfinite(means), means, np.inf)


def validation_data(model: keras.Model) -> Any:
  """The batches of `fit`'s validation data, at the end of an epoch.

  Raises:
    ValueError: If there are none.
  """
  data = compat.validation_batches(model)
  if data is None:
    raise ValueError(
        "temperature='validation' chooses the temperature by validation data, "
        'and fit has evaluated none by the end of this epoch: pass '
        'validation_data=(x, y), or validation_split=0.1 with arrays, and '
        'leave validation_freq at 1. Data that are kept for the test are none: '
        'what is chosen by them is too good on them. Or give the temperature '
        'as a number.')
  return (
      replicas.whole(model.distribute_strategy, batch) for batch in data)


def _stacked(draws):
  """One array for each weight."""
  return [np.stack(values) for values in zip(*draws)]
