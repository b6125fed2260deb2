"""Ten networks by SGHMC of posteriors: see `benchmarks.ensembles`.

  python -m benchmarks.sides.posteriors_ensemble CASE.npz PREDICTIONS.npz

Each network is trained by Adam and stopped early; then
`posteriors.sgmcmc.sghmc` takes all of them through minibatches, drawn without
replacement, from momenta of zero (by default they are drawn at T = 1, where the
temperature of a mean over N rows is 1 / N). Learning rate and friction are
chosen from a grid that has the default of friction: a quarter of the passes
with each, without the rows on which Adam was stopped, and that with the lowest
NLL of the mixture on these rows. CASE has the rows, `seed` and `passes`.
Written are the means and scales `[draw, row]` of the test rows, for each
network drawn in the second half of the steps, what was chosen, and the time of
the choice.
"""

import itertools
import math
import sys
import time

import numpy as np
import posteriors
import torch

from benchmarks import members

LEARNING_RATES, FRICTIONS = (0.01, 0.03, 0.1), (0.01, 1., 10.)
BATCH_SIZE = 256


def distribution(weights, x):
  """Of the targets, by one network."""
  layers = list(zip(weights[::2], weights[1::2]))
  for kernel, bias in layers[:-1]:
    x = torch.relu(x @ kernel + bias)
  kernel, bias = layers[-1]
  outputs = x @ kernel + bias
  return torch.distributions.Normal(
      outputs[..., 0], torch.nn.functional.softplus(outputs[..., 1]),
      validate_args=False)


def log_likelihood(weights, x, y):
  return distribution(weights, x).log_prob(y).mean()


def by_adam(x, y, seed):
  """The networks where they start."""
  held, (x, y) = members.split(x, y)
  weights = [
      torch.tensor(w, requires_grad=True)
      for w in members.initial_weights(x.shape[1], seed)]
  optimizer = torch.optim.Adam(weights, lr=members.LEARNING_RATE)
  of_each = torch.vmap(log_likelihood, (0, None, None))

  def epoch(order):
    for rows in torch.from_numpy(order):
      optimizer.zero_grad()
      torch.sum(-of_each(weights, x[rows], y[rows])).backward()
      optimizer.step()
    with torch.no_grad():
      return -of_each(weights, *held).numpy()

  return [torch.from_numpy(w) for w in members.stopped_early(
      epoch, lambda: [w.detach().numpy().copy() for w in weights], len(x),
      seed)]


def by_sghmc(x, y, starts, seed, passes, learning_rate, friction):
  """Draws of the weights: a list of `[network, ...]` for each draw."""
  torch.manual_seed(seed)
  size = min(BATCH_SIZE, len(x))
  num_steps = max(passes * (len(x) // size), 4)
  thin = max(1, num_steps // 2 // members.NUM_DRAWS)

  def of_each(weights, batch):
    # Of the mean over rows, at the temperature 1 / N.
    prior = -0.5 * sum(torch.sum(w**2) for w in weights)
    return log_likelihood(weights, *batch) + prior / len(x)

  def log_posterior(weights, batch):
    # Networks do not see each other: the gradient of the sum is that of each.
    weights = [weights[str(k)] for k in range(len(starts))]
    return (torch.vmap(of_each, (0, None))(weights, batch).sum(),
            torch.tensor([]))

  transform = posteriors.sgmcmc.sghmc.build(
      log_posterior, lr=learning_rate, alpha=friction,
      temperature=1. / len(x), momenta=0.)
  state = transform.init({str(k): w.clone() for k, w in enumerate(starts)})
  draws, rows = [], []
  for step in range(1, num_steps + 1):
    if not rows:
      rows = list(torch.randperm(len(x))[:len(x) // size * size].split(size))
    batch = rows.pop()
    state, _ = transform.update(state, (x[batch], y[batch]), inplace=True)
    if step > num_steps // 2 and step % thin == 0:
      draws.append([state.params[str(k)].clone() for k in range(len(starts))])
  return draws


def predict(draws, x):
  """Means and scales, `[draw, row]`."""
  def of_each(weights):
    normal = distribution(weights, x)
    return normal.loc, normal.scale

  parts = zip(*(torch.vmap(of_each)(weights) for weights in draws))
  return [torch.cat(part) for part in parts]


def nll(draws, x, y):
  """Of the mixture."""
  log_probs = torch.distributions.Normal(
      *predict(draws, x), validate_args=False).log_prob(y)
  return float(
      math.log(len(log_probs)) - torch.logsumexp(log_probs, 0).mean())


def choice(x, y, starts, seed, passes):
  """Learning rate and friction that predict the rows held out best."""
  held, rows = members.split(x, y)
  found = {
      settings: nll(by_sghmc(*rows, starts, seed, passes, *settings), *held)
      for settings in itertools.product(LEARNING_RATES, FRICTIONS)}
  print('NLL by learning rate and friction:', found)
  return min(
      found, key=lambda settings: np.nan_to_num(found[settings], nan=np.inf))


def main(case: str, predictions: str) -> None:
  torch.set_num_threads(1)  # These networks are too small to be divided.
  with np.load(case) as given:
    values = dict(given)
  x, y, x_test = (
      torch.from_numpy(values[name]) for name in ('x', 'y', 'x_test'))
  seed, passes = int(values['seed']), int(values['passes'])
  starts = by_adam(x, y, seed)
  wall, cpu = time.monotonic(), time.process_time()
  learning_rate, friction = choice(
      x, y, starts, seed, math.ceil(passes / 4))
  times = dict(
      choice_wall=time.monotonic() - wall, choice_cpu=time.process_time() - cpu)
  draws = by_sghmc(x, y, starts, seed, passes, learning_rate, friction)
  means, scales = predict(draws, x_test)
  np.savez(
      predictions, means=means.numpy(), scales=scales.numpy(),
      learning_rate=learning_rate, friction=friction, **times)


if __name__ == '__main__':
  main(*sys.argv[1:])
