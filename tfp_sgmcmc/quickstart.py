"""The posterior of a Bayesian softmax regression on handwritten digits.

  python -m tfp_sgmcmc.quickstart --output .

The model of an image x (64 pixels, 0 to 1) and its digit y:

  w_dc ~ N(0, s^2),  b_c ~ N(0, s^2),  y ~ Categorical(softmax(x w + b))

SGHMC on minibatches samples the 650 parameters in several chains at once,
started apart. It prints how well the chains agree and how good the
predictions are, the average over the posterior beside the single best
parameters (MAP), and writes a picture, `quickstart.png`.
"""

import argparse
from collections.abc import Sequence
import pathlib
import sys
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

__all__ = ['main']

tfd = tfp.distributions

_NUM_PIXELS = 64
_NUM_CLASSES = 10
_NUM_BINS = 10
_NUM_IMAGES = 10


class Trace(NamedTuple):
  """What is kept of each draw beside the state, a value for each chain."""
  target_log_prob: tf.Tensor  # Of all the data, not of a minibatch.
  kinetic_temperature: tf.Tensor


def to_features(images: np.ndarray) -> tf.Tensor:
  """Images as rows of 64 numbers from 0 to 1."""
  return tf.reshape(tf.cast(images, tf.float32) / 16., [-1, _NUM_PIXELS])


def make_posterior(
    digits: sgmcmc.datasets.Digits, prior_scale: float) -> sgmcmc.Posterior:
  """The posterior of weights and biases, in two parts."""
  prior = tfd.JointDistributionSequential([
      tfd.Sample(tfd.Normal(0., prior_scale), [_NUM_PIXELS, _NUM_CLASSES]),
      tfd.Sample(tfd.Normal(0., prior_scale), [_NUM_CLASSES])])

  def log_likelihood(weights, biases, batch):
    logits = batch['x'] @ weights + biases[..., tf.newaxis, :]
    return tfd.Categorical(logits=logits).log_prob(batch['y'])

  return sgmcmc.Posterior(
      prior.log_prob, log_likelihood,
      {'x': to_features(digits.images), 'y': digits.labels})


def find_map(posterior: sgmcmc.Posterior) -> list[tf.Tensor]:
  """The parameters of highest posterior density, by L-BFGS."""
  shapes = [[_NUM_PIXELS, _NUM_CLASSES], [_NUM_CLASSES]]
  split = tfp.bijectors.Split([_NUM_PIXELS * _NUM_CLASSES, _NUM_CLASSES])

  def unpack(vector):
    parts = split.forward(vector)
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]

  @tf.function  # Compiling L-BFGS with XLA takes longer than running it.
  def minimize():
    return tfp.optimizer.lbfgs_minimize(
        lambda vector: tfp.math.value_and_gradient(
            lambda v: -posterior(*unpack(v)), vector),
        tf.zeros([(_NUM_PIXELS + 1) * _NUM_CLASSES]),
        tolerance=0.01, max_iterations=1000)

  result = minimize()
  if not result.converged:
    raise ArithmeticError(
        'L-BFGS has not found the MAP: the largest component of the gradient '
        f'is {float(tf.reduce_max(tf.abs(result.objective_gradient))):g}.')
  return unpack(result.position)


def predict(
    weights: tf.Tensor, biases: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
  """Probabilities of the classes, averaged over all leading axes."""
  @tf.function(jit_compile=True)
  def mean_probabilities(weights, biases):
    logits = features @ weights + biases[..., tf.newaxis, :]
    probabilities = tf.nn.softmax(logits)
    return tf.reduce_mean(
        probabilities, axis=list(range(probabilities.shape.rank - 2)))

  return mean_probabilities(weights, biases)


def sample(
    posterior: sgmcmc.Posterior,
    arguments: argparse.Namespace,
) -> sgmcmc.Draws:
  """SGHMC on minibatches, the chains started at half the prior's width."""
  kernel = sgmcmc.SGHMC(
      posterior, step_size=arguments.step_size, friction=arguments.friction,
      integrator='baoab',
      gradient_estimator=sgmcmc.gradients.Uniform(arguments.batch_size))
  seed = tf.constant([arguments.seed, 1])
  scale = 0.5 * arguments.prior_scale
  chains = arguments.num_chains
  start = [
      scale * sgmcmc.random.normal([chains, _NUM_PIXELS, _NUM_CLASSES], seed),
      scale * sgmcmc.random.normal([chains, _NUM_CLASSES], seed, stream=1)]

  def trace_fn(state, results):
    energy = sum(
        tf.reduce_sum(tf.square(r), axis=list(range(1, r.shape.rank)))
        for r in results.momentum)
    return Trace(posterior(*state), energy / (_NUM_PIXELS + 1) / _NUM_CLASSES)

  return sgmcmc.sample(
      kernel, arguments.num_results, start,
      num_burnin_steps=arguments.num_burnin_steps,
      num_steps_between_results=arguments.num_steps_between_results,
      trace_fn=trace_fn, seed=arguments.seed)


def print_chains(trace: Trace) -> None:
  """Prints how well the chains agree."""
  r_hat = tfp.mcmc.potential_scale_reduction(
      trace.target_log_prob, split_chains=True)
  effective = tfp.mcmc.effective_sample_size(
      trace.target_log_prob, filter_beyond_positive_pairs=True,
      cross_chain_dims=1)
  num_draws, num_chains = trace.target_log_prob.shape
  print(f'\n{num_chains} chains of {num_draws} draws')
  print('  log density of all the data: mean '
        f'{float(tf.reduce_mean(trace.target_log_prob)):.1f}, R-hat '
        f'{float(r_hat):.3f}, effective sample size {float(effective):.0f}')
  print('  kinetic temperature: '
        f'{float(tf.reduce_mean(trace.kinetic_temperature)):.3f} (1 is exact; '
        'the noise of minibatches heats)')
  if not r_hat < 1.05:
    print('  R-hat is not below 1.05: run longer, with --num_burnin_steps and '
          '--num_results.')


def print_scores(
    probabilities: dict[str, tf.Tensor], labels: np.ndarray) -> None:
  """Prints a table of the predictions' scores on the test images."""
  print(f'\n{f"{len(labels)} test images":<20}{"accuracy":>10}{"NLL":>10}'
        f'{"Brier":>10}{"ECE":>10}')
  for name, p in probabilities.items():
    scores = (
        sgmcmc.diagnostics.accuracy(p, labels),
        sgmcmc.diagnostics.negative_log_likelihood(p, labels),
        sgmcmc.diagnostics.brier_score(p, labels),
        sgmcmc.diagnostics.expected_calibration_error(p, labels, _NUM_BINS))
    print(f'{name:<20}' + ''.join(f'{float(s):>10.4f}' for s in scores))


def draw(
    path: pathlib.Path,
    trace: Trace,
    probabilities: dict[str, tf.Tensor],
    test: sgmcmc.datasets.Digits,
) -> None:
  """Draws calibration, traces and the images of least confidence."""
  from matplotlib import figure  # pylint: disable=g-import-not-at-top

  from tfp_sgmcmc.diagnostics import plots

  picture = figure.Figure(figsize=(10., 7.), layout='constrained')
  top, bottom = picture.subfigures(2, 1, height_ratios=[1.45, 1.])
  left, right = top.subplots(1, 2, width_ratios=[1., 1.6])
  plots.reliability(left, {
      name: sgmcmc.diagnostics.reliability_curve(p, test.labels, _NUM_BINS)
      for name, p in probabilities.items()})
  left.set_title('Reliability on the test images', fontsize=11)
  plots.traces(right, trace.target_log_prob, 'log posterior density')
  right.set_title('Log density of all the data, by chain', fontsize=11)
  posterior_average = probabilities['posterior average'].numpy()
  least_sure = np.argsort(posterior_average.max(axis=1))[:_NUM_IMAGES]
  bottom.suptitle(
      'The test images it is least sure of, and the digits it takes them for '
      '(blue: right)', fontsize=11)
  grid = bottom.subplots(2, _NUM_IMAGES, height_ratios=[1.5, 1.])
  for k, index in enumerate(least_sure):
    image, chart = grid[:, k]
    image.imshow(test.images[index], cmap='gray_r', vmin=0, vmax=16)
    image.set_title(f'a {test.labels[index]}', fontsize=9)
    image.set_anchor('S')
    image.set_axis_off()
    p = posterior_average[index]
    classes = np.argsort(p)[::-1][:3]
    chart.bar(range(3), p[classes], color=[
        'C0' if c == test.labels[index] else '0.78' for c in classes])
    chart.set(xticks=range(3), yticks=[0., 0.5], ylim=(0., 0.6))
    chart.set_xticklabels([str(c) for c in classes])
    chart.tick_params(length=0, labelleft=k == 0)
    chart.grid(axis='y', color='0.88', linewidth=0.6)
    chart.set_axisbelow(True)
    chart.spines[['top', 'right', 'left']].set_visible(False)
  grid[1, 0].set_ylabel('probability')
  picture.savefig(path, dpi=100)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
      prog='python -m tfp_sgmcmc.quickstart', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
      '--output', type=pathlib.Path, default=pathlib.Path('.'),
      help='folder of quickstart.png (default: this one)')
  for name, default in (
      ('num_chains', 4), ('num_results', 400), ('num_burnin_steps', 6000),
      ('num_steps_between_results', 99), ('batch_size', 400), ('seed', 1)):
    parser.add_argument(
        f'--{name}', type=int, default=default, help=f'default: {default}')
  for name, default in (
      ('prior_scale', 8.), ('step_size', 0.03), ('friction', 0.3)):
    parser.add_argument(
        f'--{name}', type=float, default=default, help=f'default: {default}')
  return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the main job.

  Args:
    argv: The command line's arguments; by default those of this process.

  Returns:
    status: The exit status.
  """
  arguments = parse(argv)
  try:
    import matplotlib  # noqa: F401
    import tqdm  # noqa: F401
  except ImportError as error:
    print(f'{error}: pip install "tfp_sgmcmc[quickstart]"', file=sys.stderr)
    return 1
  begin = time.monotonic()
  tf.get_logger().setLevel('ERROR')
  train, test = sgmcmc.datasets.load_digits()
  print(f'Bayesian softmax regression on {len(train.labels)} images of digits, '
        f'SGHMC on minibatches of {arguments.batch_size}')
  posterior = make_posterior(train, arguments.prior_scale)
  features = to_features(test.images)
  probabilities = {'MAP': predict(*find_map(posterior), features)}
  draws = sample(posterior, arguments)
  probabilities['posterior average'] = predict(*draws.states, features)
  print_chains(draws.trace)
  print_scores(probabilities, test.labels)
  arguments.output.mkdir(parents=True, exist_ok=True)
  path = arguments.output / 'quickstart.png'
  draw(path, draws.trace, probabilities, test)
  print(f'\n{path} written, {time.monotonic() - begin:.0f} s in all')
  return 0


if __name__ == '__main__':
  sys.exit(main())
