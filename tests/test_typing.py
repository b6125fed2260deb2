"""The type hints, as a type checker finds them in a user's program."""

import pathlib

import mypy.api
import pytest

import tfp_sgmcmc

pytestmark = pytest.mark.slow  # A type checker reads all of the package.

ROOT = pathlib.Path(tfp_sgmcmc.__file__).parent.parent

RIGHT = """
import tensorflow as tf
import tfp_sgmcmc as sgmcmc

posterior = sgmcmc.Posterior(
    lambda mu: -mu**2, lambda mu, x: -(x - mu)**2, data=tf.zeros([10]))
kernel = sgmcmc.SGHMC(
    posterior, step_size=0.01, friction=1.,
    gradient_estimator=sgmcmc.gradients.Uniform(batch_size=10))
draws: sgmcmc.Draws = sgmcmc.sample(kernel, 10, tf.zeros([]), seed=1)
number: int = len(draws) + posterior.num_examples
"""

# Each of these lines is an error.
WRONG = """
import tfp_sgmcmc as sgmcmc
sgmcmc.gradients.Uniform(batch_size='10')
sgmcmc.SGHMC(lambda x: x, step_size=0.1)
sgmcmc.SGLD(lambda x: x, 0.1, gradient_estimator=100)
sgmcmc.sample(sgmcmc.SGLD(lambda x: x, 0.1), num_results='many')
"""


def check(tmp_path, monkeypatch, program):
  file = tmp_path / 'program.py'
  file.write_text(program)
  monkeypatch.setenv('MYPYPATH', str(ROOT))
  output, errors, _ = mypy.api.run([
      '--ignore-missing-imports', '--follow-imports=silent',
      '--cache-dir', str(tmp_path / 'cache'),
      str(file)])
  assert not errors, errors
  return output


@pytest.mark.weekly
def test_a_right_program_has_no_errors(tmp_path, monkeypatch):
  assert 'Success' in check(tmp_path, monkeypatch, RIGHT)


def test_wrong_arguments_are_found(tmp_path, monkeypatch):
  output = check(tmp_path, monkeypatch, WRONG)
  wrong = range(3, 3 + len(WRONG.strip().splitlines()) - 1)
  for line in wrong:
    assert f'program.py:{line}: error' in output, output
