"""SGLD of posteriors (PyTorch); minibatches are drawn with replacement."""

import posteriors
import torch

from benchmarks import data
from benchmarks import worker


def prepare(case):
  x, y = (torch.from_numpy(part) for part in data.examples(case))
  y = y.long()
  num_examples = case['num_examples']

  def log_posterior(parts, batch):
    x, y = batch
    logits = torch.relu(x @ parts['w1'] + parts['b1'])
    logits = logits @ parts['w2'] + parts['b2']
    # Of the mean over examples, at the temperature 1 / N.
    prior = -0.5 * sum(torch.sum(part**2) for part in parts.values())
    return prior / num_examples - torch.nn.functional.cross_entropy(
        logits, y), torch.tensor([])

  transform = posteriors.sgmcmc.sgld.build(
      log_posterior, lr=case['step_size'] * num_examples,
      temperature=1. / num_examples)
  names = 'w1', 'b1', 'w2', 'b2'
  state = transform.init({
      name: torch.from_numpy(part)
      for name, part in zip(names, data.start(case))})

  def turn(seed):
    nonlocal state
    torch.manual_seed(seed)
    draws = []
    for _ in range(case['num_draws']):
      for _ in range(case['thin']):
        rows = torch.randint(num_examples, [case['batch_size']])
        state, _ = transform.update(state, (x[rows], y[rows]), inplace=True)
      draws.append([state.params[name].numpy().copy() for name in names])
    return [list(parts) for parts in zip(*draws)]

  return turn


if __name__ == '__main__':
  worker.serve(prepare)
