"""Pictures of runs and of predictions, with matplotlib (the extra `plots`).

Each function draws on the axes that you pass. For traces of parameters use
ArviZ: `arviz.plot_trace(draws.to_arviz())`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfp_sgmcmc.diagnostics import calibration
from tfp_sgmcmc.diagnostics import chains
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints

try:
  import matplotlib.axes
except ImportError as error:
  raise ImportError(
      'tfp_sgmcmc.diagnostics.plots needs matplotlib: '
      'pip install "tfp_sgmcmc[plots]".') from error

__all__ = [
    'coverage', 'kinetic_temperature', 'pit', 'r_hat', 'reliability',
    'risk_coverage', 'shifts']

_GREY: dict[str, Any] = dict(color='0.6', linewidth=1, linestyle='--', zorder=1)
_NUM_LEVELS = 101
# Of R-hat: for how many n, and of how many predicted numbers.
_NUM_POINTS, _MOST_NUMBERS = 12, 50


def reliability(
    axes: matplotlib.axes.Axes,
    curves: Mapping[str, calibration.ReliabilityCurve],
) -> matplotlib.axes.Axes:
  """Draws accuracy against confidence; the diagonal is perfect calibration.

  There is a point for each bin that has examples; its area grows with their
  number. Its bar is the standard error that the accuracy would have if the
  forecast were calibrated, sqrt(c (1 - c) / n) for a bin of n examples with the
  mean confidence c: a calibrated forecast's bar reaches the diagonal in about
  two bins of three.

  Args:
    axes: Matplotlib axes.
    curves: `ReliabilityCurve`s by the name that the legend gives them.

  Returns:
    axes: The same.

  Raises:
    TypeError: If these are no axes, or no dictionary of such curves.
    ValueError: If there are no curves.

  #### Examples

  >>> import matplotlib.figure
  >>> from tfp_sgmcmc.diagnostics import plots
  >>> curve = sgmcmc.diagnostics.reliability_curve(
  ...     [[0.75, 0.25], [0.4, 0.6]], [0, 1])
  >>> axes = plots.reliability(
  ...     matplotlib.figure.Figure().subplots(), {'model': curve})
  >>> axes.get_ylabel()
  'accuracy'
  """
  _check_axes(axes)
  _check_curves(curves, calibration.ReliabilityCurve)
  axes.plot([0, 1], [0, 1], **_GREY)
  for k, (name, curve) in enumerate(curves.items()):
    confidence, accuracy, count = (np.asarray(value) for value in curve)
    kept = count > 0
    confidence, accuracy, count = (
        value[kept] for value in (confidence, accuracy, count))
    error = np.sqrt(np.clip(confidence * (1. - confidence), 0., None) / count)
    color = f'C{k}'
    axes.errorbar(
        confidence, accuracy, yerr=error, color=color, linewidth=1.2,
        elinewidth=0.8, label=name, zorder=2 + k)
    axes.scatter(
        confidence, accuracy, s=12. + 160. * count / count.sum(), color=color,
        alpha=0.8, linewidth=0., zorder=2 + k)
  axes.set(
      xlim=(0., 1.02), ylim=(0., 1.05), aspect='equal', xlabel='confidence',
      ylabel='accuracy')
  axes.legend(loc='upper left', edgecolor='none')
  return axes


def pit(
    axes: matplotlib.axes.Axes,
    levels: Mapping[str, Any],
    num_bins: int = 10,
) -> matplotlib.axes.Axes:
  """Draws the histogram of targets' predicted quantiles, flat if calibrated.

  The grey band holds the share of a bin in 95 of 100 calibrated predictions of
  as many independent targets. A hill means that predictions are wider than the
  targets' law, a valley that they are narrower, a slope that they are shifted.

  Args:
    axes: Matplotlib axes.
    levels: Numbers in [0, 1] of `diagnostics.pit`, by the name that the legend
      gives them.
    num_bins: Python `int`, bins of equal width.

  Returns:
    axes: The same.

  Raises:
    TypeError: If these are no axes, or no dictionary.
    ValueError: If there are no numbers, or some are not in [0, 1].

  #### Examples

  >>> import matplotlib.figure
  >>> from tfp_sgmcmc.diagnostics import plots
  >>> u = sgmcmc.diagnostics.pit(tfd.Normal(0., 1.), 0.5)
  >>> axes = plots.pit(matplotlib.figure.Figure().subplots(), {'model': [u]})
  >>> axes.get_xlabel()
  'predicted quantile of the target'
  """
  _check_axes(axes)
  num_bins = checks.positive_integer('num_bins', num_bins)
  edges, levels = np.linspace(0., 1., num_bins + 1), _check_levels(levels)
  for k, (name, u) in enumerate(levels.items()):
    share = np.histogram(u, edges)[0] / u.size
    axes.stairs(share, edges, color=f'C{k}', linewidth=1.2, label=name)
  even = 1. / num_bins
  half = float(_half_band(even, levels))
  axes.axhspan(
      max(even - half, 0.), even + half, color='0.9', linewidth=0., zorder=0)
  axes.axhline(even, **_GREY)
  axes.set(
      xlim=(0., 1.), ylim=(0., None),
      xlabel='predicted quantile of the target', ylabel='share of targets')
  axes.legend(edgecolor='none')
  return axes


def coverage(
    axes: matplotlib.axes.Axes,
    levels: Mapping[str, Any],
) -> matplotlib.axes.Axes:
  """Draws the share of targets in their intervals, for all levels.

  The interval of level a lies between the quantiles (1 - a) / 2 and
  (1 + a) / 2. For a calibrated prediction the curve is the diagonal, up to the
  grey band, which holds each point of the curve in 95 of 100 cases for as many
  independent targets. A curve below the band means that intervals are too
  short.

  Args:
    axes: Matplotlib axes.
    levels: Numbers in [0, 1] of `diagnostics.pit`, by the name that the legend
      gives them.

  Returns:
    axes: The same.

  Raises:
    TypeError: If these are no axes, or no dictionary.
    ValueError: If there are no numbers, or some are not in [0, 1].

  #### Examples

  >>> import matplotlib.figure
  >>> from tfp_sgmcmc.diagnostics import plots
  >>> u = sgmcmc.diagnostics.pit(tfd.Normal(0., 1.), 0.5)
  >>> axes = plots.coverage(
  ...     matplotlib.figure.Figure().subplots(), {'model': [u]})
  >>> axes.get_ylabel()
  'share of targets inside'
  """
  _check_axes(axes)
  wanted, levels = np.linspace(0., 1., _NUM_LEVELS), _check_levels(levels)
  for k, (name, u) in enumerate(levels.items()):
    # The least level whose interval holds the target.
    least = np.sort(np.abs(2. * u - 1.))
    axes.plot(
        wanted, np.searchsorted(least, wanted, side='right') / u.size,
        color=f'C{k}', linewidth=1.5, label=name)
  half = _half_band(wanted, levels)
  axes.fill_between(
      wanted, wanted - half, wanted + half, color='0.9', linewidth=0., zorder=0)
  axes.plot([0, 1], [0, 1], **_GREY)
  axes.set(
      xlim=(0., 1.), ylim=(0., 1.), aspect='equal', xlabel='level of intervals',
      ylabel='share of targets inside')
  axes.legend(loc='upper left', edgecolor='none')
  return axes


def risk_coverage(
    axes: matplotlib.axes.Axes,
    curves: Mapping[str, calibration.RiskCoverageCurve],
) -> matplotlib.axes.Axes:
  """Draws the share of errors against the share of examples answered.

  The most confident examples are answered first. The lower the curve, the
  better the confidence separates right from wrong predictions. Its right end is
  the error rate.

  Args:
    axes: Matplotlib axes.
    curves: `RiskCoverageCurve`s by the name that the legend gives them.

  Returns:
    axes: The same.

  Raises:
    TypeError: If these are no axes, or no dictionary of such curves.
    ValueError: If there are no curves.

  #### Examples

  >>> import matplotlib.figure
  >>> from tfp_sgmcmc.diagnostics import plots
  >>> curve = sgmcmc.diagnostics.risk_coverage_curve(
  ...     [[0.75, 0.25], [0.4, 0.6]], [0, 0])
  >>> axes = plots.risk_coverage(
  ...     matplotlib.figure.Figure().subplots(), {'model': curve})
  >>> axes.get_ylabel()
  'share of errors among them'
  """
  _check_axes(axes)
  _check_curves(curves, calibration.RiskCoverageCurve)
  for k, (name, curve) in enumerate(curves.items()):
    axes.plot(*curve, color=f'C{k}', linewidth=1.5, label=name)
    axes.plot(
        curve.coverage[-1], curve.risk[-1], 'o', color=f'C{k}', markersize=4,
        clip_on=False)
  axes.set(
      xlim=(0., 1.), xlabel='share of examples answered, the surest first',
      ylabel='share of errors among them')
  axes.set_ylim(bottom=0.)
  axes.legend(loc='upper left', edgecolor='none')
  return axes


def kinetic_temperature(
    axes: matplotlib.axes.Axes,
    kinetic: hints.TensorLike,
    temperature: hints.Schedule = 1.,
    steps: hints.TensorLike | None = None,
    window: int = 20,
) -> matplotlib.axes.Axes:
  """Draws how hot a chain was, over its steps.

  The kinetic temperature r' r / d over T, thin, and its mean over a window,
  thick. It has to be about 1. The band is 10% to either side; outside it
  `summary` calls a mean doubtful. (The momentum of SGHMC "euler" is stored just
  after its kick. It is hotter by h friction / 2, in `fit` by (1 -
  momentum) / 2, and the positions are not.)

  Args:
    axes: Matplotlib axes.
    kinetic: Array `[n]`, or `[n, chains]` whose mean over chains is drawn:
      `history.history['kinetic_temperature']` of a `fit`, or
      `draws.trace.mean_squared_momentum` of a run with `trace_energies`.
    temperature: T, a number or an array `[n]`.
    steps: Array `[n]` for the axis; None for 1, 2, ....
    window: Python `int`, the length of the mean.

  Returns:
    axes: The same.

  Raises:
    TypeError: If these are no axes, or an argument holds no real numbers.
    ValueError: If there are no steps, or T or the steps are of another number.

  #### Examples

  >>> import matplotlib.figure
  >>> from tfp_sgmcmc.diagnostics import plots
  >>> axes = plots.kinetic_temperature(
  ...     matplotlib.figure.Figure().subplots(), [3., 1.2, 0.9, 1.], window=2)
  >>> axes.get_yscale()
  'linear'
  """
  _check_axes(axes)
  window = checks.positive_integer('window', window)
  kinetic = checks.real_array('kinetic', kinetic)
  if not kinetic.ndim or not kinetic.size:
    raise ValueError(
        f'kinetic has shape {kinetic.shape}: [n] or [n, chains] is needed, '
        'with one step at least.')
  number = len(kinetic)
  temperature = _of_length('temperature', temperature, number, or_one=True)
  steps = np.arange(1, number + 1) if steps is None else _of_length(
      'steps', steps, number)
  ratio = np.reshape(kinetic, [number, -1]).mean(axis=1) / temperature
  window = min(window, len(ratio))
  smooth = np.convolve(ratio, np.full(window, 1. / window), mode='valid')
  axes.axhspan(0.9, 1.1, color='0.9', linewidth=0., zorder=0)
  axes.axhline(1., **_GREY)
  axes.plot(steps, ratio, color='C0', alpha=0.35, linewidth=0.8, zorder=2)
  axes.plot(
      steps[window // 2:window // 2 + len(smooth)], smooth, color='C0',
      linewidth=1.8, zorder=3, label=f'mean of {window}')
  if np.max(ratio) > 10.:
    axes.set_yscale('log')
  else:
    axes.set_ylim(min(0.6, 0.9 * np.min(ratio)), max(1.5, 1.2 * np.max(ratio)))
  axes.set(xlabel='step', ylabel='kinetic temperature / T')
  axes.legend(loc='upper right', edgecolor='none')
  return axes


def r_hat(
    axes: matplotlib.axes.Axes,
    predictions: hints.TensorLike,
) -> matplotlib.axes.Axes:
  """Draws how the predictions of chains come to agree as draws are added.

  Rank R-hat of the first n draws of each chain, for the 50 predicted numbers
  that vary most within chains: the median, the range, and the limit
  that `summary` has for the largest. It needs the extra `arviz`.

  Args:
    axes: Matplotlib axes.
    predictions: Array `[chain, draw, ...]`: a list of
      `posterior.predict(x, return_samples=True)`, for draws of several fits.

  Returns:
    axes: The same.

  Raises:
    TypeError: If these are no axes, or the predictions are no real numbers.
    ValueError: If there are fewer than 12 draws, or no chains or numbers.

  #### Examples

  >>> import matplotlib.figure
  >>> from tfp_sgmcmc.diagnostics import plots
  >>> predictions = tf.random.stateless_normal([4, 40, 3], [0, 1])
  >>> axes = plots.r_hat(matplotlib.figure.Figure().subplots(), predictions)
  >>> axes.get_ylabel()
  'rank R-hat of predictions'
  """
  _check_axes(axes)
  values = checks.real_array('predictions', predictions)
  if values.ndim < 2 or values.shape[1] < 12 or not values.size:
    raise ValueError(
        f'predictions have shape {values.shape}: [chain, draw, ...] with 12 '
        'draws at least is needed.')
  values = values.reshape([*values.shape[:2], -1])
  most = np.argsort(-np.mean(np.var(values, axis=1), axis=0))[:_MOST_NUMBERS]
  values = values[..., most]
  numbers = np.unique(np.linspace(
      min(12, values.shape[1]), values.shape[1], _NUM_POINTS).astype(int))
  found, by_chance = zip(*(
      chains.rank_r_hats(values[:, :n]) for n in numbers))
  largest = np.max(found, axis=1)
  axes.fill_between(
      numbers, np.min(found, axis=1), largest, color='C0', alpha=0.2,
      linewidth=0.)
  axes.plot(numbers, largest, color='C0', linewidth=0.9, label='largest')
  axes.plot(
      numbers, np.median(found, axis=1), color='C0', linewidth=1.8,
      label='median')
  axes.plot(
      numbers, np.maximum(1.05, by_chance), label='limit of the largest',
      **{**_GREY, 'color': '0.3', 'zorder': 4})
  axes.set(xlabel='draws of each chain', ylabel='rank R-hat of predictions')
  axes.set_ylim(0.95, 1. + 1.4 * (max(*largest, *by_chance) - 1.))
  axes.xaxis.get_major_locator().set_params(
      integer=True)  # type: ignore[call-arg]
  axes.legend(loc='upper right', edgecolor='none')
  return axes


def shifts(
    axes: matplotlib.axes.Axes,
    entropies: Mapping[str, Mapping[str, Any]],
    num_classes: int | None = None,
) -> matplotlib.axes.Axes:
  """Draws the uncertainty of forecasts on data unlike the training data.

  For each shift the entropy of the predicted probabilities: the median over
  examples as a point, the middle half as a bar, the middle 90% as a line. A
  forecast should be less confident where it is more often wrong.

  Args:
    axes: Matplotlib axes.
    entropies: By the name that the legend gives a forecast, and then by that of
      the shift, arrays `[n]` in nats, such as
      `posterior.predictive_entropy(x).total`.
    num_classes: None, or the number of classes: its logarithm, the entropy of a
      uniform forecast, is drawn as a line.

  Returns:
    axes: The same.

  Raises:
    TypeError: If these are no axes, or no dictionary of dictionaries.
    ValueError: If forecasts have other shifts than each other, or no examples.

  #### Examples

  >>> import matplotlib.figure
  >>> from tfp_sgmcmc.diagnostics import plots
  >>> axes = plots.shifts(matplotlib.figure.Figure().subplots(), {
  ...     'Adam': {'none': [0.1, 0.2], 'noise': [0.2, 0.3]},
  ...     'posterior': {'none': [0.1, 0.3], 'noise': [0.6, 0.9]}}, 2)
  >>> [label.get_text() for label in axes.get_xticklabels()]
  ['none', 'noise']
  """
  _check_axes(axes)
  names = _check_shifts(entropies)
  if num_classes is not None:
    num_classes = checks.positive_integer('num_classes', num_classes)
  top = 0. if num_classes is None else np.log(num_classes)
  width = 0.7 / len(entropies)
  for k, (forecast, by_shift) in enumerate(entropies.items()):
    at = np.arange(len(names)) + (k - (len(entropies) - 1.) / 2.) * width
    low, first, median, third, high = np.transpose([
        np.quantile(np.asarray(by_shift[name]), [0.05, 0.25, 0.5, 0.75, 0.95])
        for name in names])
    axes.vlines(at, low, high, color=f'C{k}', linewidth=1.2)
    axes.bar(
        at, third - first, 0.6 * width, bottom=first, color=f'C{k}', alpha=0.45,
        linewidth=0., label=forecast)
    axes.plot(at, median, 'o', color=f'C{k}', markersize=5)
    top = max(top, *high)
  if num_classes is not None:
    axes.axhline(np.log(num_classes), **_GREY)
    axes.annotate(
        'all classes alike', (len(names) - 0.5, np.log(num_classes)),
        ha='right', va='bottom', color='0.4', fontsize='small')
  is_long = sum(map(len, names)) > 30
  axes.set_xticks(
      np.arange(len(names)), names, rotation=20 if is_long else 0,
      ha='right' if is_long else 'center')
  axes.set(ylabel='entropy of the prediction, nats', ylim=(0., 1.25 * top))
  axes.legend(loc='upper left', edgecolor='none', ncols=len(entropies))
  return axes


def _check_axes(axes):
  if not isinstance(axes, matplotlib.axes.Axes):
    raise TypeError(
        f'axes is of type {type(axes).__name__}: the axes of one picture are '
        'needed, such as matplotlib.pyplot.subplots()[1].')


def _half_band(share, levels):
  """What a share of the fewest targets stays within in 95 of 100 cases."""
  fewest = min(u.size for u in levels.values())
  return 1.96 * np.sqrt(share * (1. - share) / fewest)


def _check_levels(levels):
  """Arrays `[n]` by name, or an error."""
  if not isinstance(levels, Mapping):
    raise TypeError(
        f'levels is of type {type(levels).__name__}: a dictionary by name is '
        'needed, of what diagnostics.pit gives.')
  if not levels:
    raise ValueError('levels is empty: one at least is needed.')
  found = {}
  for name, u in levels.items():
    u = checks.real_array(f'levels[{name!r}]', u).ravel()
    if not u.size or not np.all((u >= 0.) & (u <= 1.)):
      raise ValueError(
          f'levels[{name!r}] has to hold numbers in [0, 1], one at least.')
    found[name] = u
  return found


def _check_curves(curves, kind):
  function = {
      calibration.ReliabilityCurve: 'reliability_curve',
      calibration.RiskCoverageCurve: 'risk_coverage_curve'}[kind]
  way_out = (
      f"pass {{'posterior': diagnostics.{function}(probabilities, labels)}}.")
  if not isinstance(curves, Mapping):
    raise TypeError(
        f'curves is of type {type(curves).__name__}: a dictionary of curves by '
        f'name is needed, {way_out}')
  for name, curve in curves.items():
    if not isinstance(curve, kind):
      raise TypeError(
          f'curves[{name!r}] is of type {type(curve).__name__}: a '
          f'{kind.__name__} is needed, {way_out}')
  if not curves:
    raise ValueError(f'There are no curves: {way_out}')


def _of_length(name, value, number, or_one=False):
  """An array `[number]`, or one number, or an error that names it."""
  array = checks.real_array(name, value)
  if array.shape != (number,) and not (or_one and not array.ndim):
    raise ValueError(
        f'{name} has shape {array.shape}, and there are {number} steps: '
        f'[{number}] is needed{", or one number" if or_one else ""}.')
  return array


def _check_shifts(entropies):
  """The names of the shifts, which all forecasts have."""
  wanted = (
      "arrays by the name of the shift for each forecast are needed, "
      "{'posterior': {'none': entropy}}.")
  if not isinstance(entropies, Mapping) or not all(
      isinstance(by_shift, Mapping) for by_shift in entropies.values()):
    raise TypeError(
        'entropies is no dictionary of dictionaries: ' + wanted)
  shifts = {forecast: list(by_shift) for forecast, by_shift in
            entropies.items()}
  names = next(iter(shifts.values()), [])
  if not names or any(set(names) != set(other) for other in shifts.values()):
    raise ValueError(
        f'The forecasts have the shifts {shifts}: {wanted} All need the same '
        'shifts, one at least.')
  for forecast, by_shift in entropies.items():
    for name in names:
      array = checks.real_array(
          f'entropies[{forecast!r}][{name!r}]', by_shift[name])
      if array.ndim != 1 or not array.size:
        raise ValueError(
            f'entropies[{forecast!r}][{name!r}] has shape {array.shape}: [n] '
            'is needed, with one example at least.')
  return names
