"""Errors that several tests plant, to show that they see them."""

import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc.gradients import minibatch


class KineticTemperature(sgmcmc.SGHMC):
  """Its excess is that of the momentum as it is stored, offset and all."""

  def excess(self, previous, results):
    kinetic = [tf.square(r) - 1. for r in results.momentum]
    return super().excess(previous, results)._replace(
        measured=kinetic, predicted=kinetic)


def no_population_factor(monkeypatch):
  """The variance of minibatches as if they were drawn with replacement."""
  monkeypatch.setattr(minibatch, 'population_factor', lambda *_: 1.)
