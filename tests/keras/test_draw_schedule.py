"""When draws are due, against lists and times written out."""

import keras
import numpy as np
import pytest

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.keras.draws import draw_times


def make(num_burnin_steps=0, is_continuous=False, **arguments):
  return draw_times.DrawTimes(
      num_burnin_steps,
      sgmcmc.keras.DrawSchedule(**{
          'num_steps_between_results': 0, **arguments}),
      is_continuous=is_continuous)


def continuous(**arguments):
  return make(is_continuous=True, **arguments)


@pytest.mark.parametrize('arguments, due', [
    (dict(), [1, 2, 3, 4, 5, 6, 7, 8]),
    (dict(num_burnin_steps=3), [4, 5, 6, 7, 8]),
    (dict(num_burnin_steps=1, num_steps_between_results=2), [2, 5, 8]),
    (dict(num_steps_between_results=2, max_results=2), [1, 4]),
    (dict(keep_draw=lambda step: step % 4 == 0), [4, 8]),
    (dict(num_burnin_steps=4, keep_draw=lambda step: step < 4), []),
])
def test_steps_that_are_due(arguments, due):
  schedule = make(**arguments)
  steps = []
  for step in range(1, 9):
    if schedule.is_due(step, len(steps)):
      steps.append(step)
  assert steps == due


@pytest.mark.parametrize('step', range(8))
@pytest.mark.parametrize('most', [1, 2, 4])
def test_steps_at_once_end_with_a_draw(step, most):
  schedule = make(num_burnin_steps=2, num_steps_between_results=2)
  to_the_next = min(due for due in (3, 6, 9, 12) if due > step) - step
  assert schedule.at_once(step, most, 0) == min(most, to_the_next)


@pytest.mark.parametrize('step, most, expected', [
    (4, 1, 1), (0, 3, 3), (0, 4, 3), (7, 2, 1)])
def test_segments_after_burnin_are_made_one_by_one(step, most, expected):
  schedule = continuous(num_burnin_steps=2, interval=1.)
  assert schedule.at_once(step, most, 0) == expected


@pytest.mark.parametrize('max_results', [None, 4])
def test_draws_along_a_path_are_at_equal_times(max_results):
  durations = np.random.default_rng(0).exponential(size=40)
  num_burnin_steps, interval = 5, 0.7
  schedule = continuous(
      num_burnin_steps=num_burnin_steps, interval=interval,
      max_results=max_results)
  times, now = [], -np.sum(durations[:num_burnin_steps])
  for step, duration in enumerate(durations, start=1):
    now += duration
    shares = schedule.along_segment(step, duration, len(times))
    assert all(0. <= share < 1. for share in shares)
    times += [now - share * duration for share in shares]
  number = int(now / interval) if max_results is None else max_results
  np.testing.assert_allclose(times, interval * np.arange(1, number + 1))


def test_what_keep_draw_passes_over_takes_its_time_too():
  schedule = continuous(interval=1., keep_draw=lambda step: step != 1)
  assert schedule.along_segment(1, 1.5, 0) == []
  np.testing.assert_allclose(schedule.along_segment(2, 2., 0), [0.75, 0.25])


def test_first_due():
  assert make(num_burnin_steps=6).first_due() == 'at step 7'
  schedule = continuous(interval=2.)
  schedule.along_segment(1, 0.5, 0)
  assert '1.5 units of time' in schedule.first_due()


@pytest.mark.parametrize('num_steps', [0, 6])
@pytest.mark.parametrize('epochs', [1, 2, 3, 5])
def test_what_fit_can_reach(num_steps, epochs):
  schedule = make(num_burnin_steps=4, num_steps_between_results=4)
  arguments = dict(num_steps=num_steps, epoch=1, epochs=epochs, steps=3)
  steps = range(num_steps + 1, num_steps + 3 * (epochs - 1) + 1)
  if any(schedule.is_due(step, 0) for step in steps):
    schedule.check_reachable(**arguments)
  else:
    with pytest.raises(ValueError, match=(
        f'without a draw. It makes {3 * (epochs - 1)} step.*due at step 5 .*'
        f'{num_steps} were made before')):
      schedule.check_reachable(**arguments)


@pytest.mark.parametrize('t_mul, fraction, kept', [
    (1., 0.5, [3, 4, 7, 8, 11, 12]), (1., 0., [*range(1, 13)]),
    (2., 0.5, [3, 4, 9, 10, 11, 12]), (2., 0.75, [4, 11, 12])])
def test_late_in_cycle(t_mul, fraction, kept):
  schedule = keras.optimizers.schedules.CosineDecayRestarts(
      0.1, first_decay_steps=4, t_mul=t_mul)
  keep_draw = sgmcmc.keras.late_in_cycle(schedule, fraction)
  assert [step for step in range(1, 13) if keep_draw(step)] == kept


@pytest.mark.parametrize('arguments, message', [
    (dict(num_burnin_steps=-1), 'num_burnin_steps is -1'),
    (dict(num_steps_between_results=0.5), 'num_steps_between_results is 0.5'),
    (dict(max_results=0), 'max_results is 0'),
    (dict(keep_draw=3), 'keep_draw is 3'),
    (dict(interval=1.), 'does not move in continuous time'),
    (dict(is_continuous=True), 'pass the time between two draws'),
    (dict(is_continuous=True, interval=0.), 'interval is 0'),
    (dict(is_continuous=True, interval=[1., 2.]), 'interval'),
])
def test_wrong_arguments(arguments, message):
  with pytest.raises((TypeError, ValueError), match=message):
    make(**arguments)


def test_late_in_cycle_needs_cycles():
  with pytest.raises(TypeError, match='CosineDecayRestarts'):
    sgmcmc.keras.late_in_cycle(lambda step: 0.1)
  schedule = keras.optimizers.schedules.CosineDecayRestarts(0.1, 4)
  with pytest.raises(ValueError, match='fraction is 1'):
    sgmcmc.keras.late_in_cycle(schedule, fraction=1.)
