"""One network taught to predict as a posterior does.

A student q with weights phi is fitted to what the posterior predicts for inputs
that need no targets: it minimises the cross-entropy

  mean_i E[-log q(y | x_i, phi)],  y by the mixture over the draws at x_i,

which is least, over all q, where q is the mixture itself [1]. Of classes this
is the crossentropy with the mixture's probabilities as soft labels. Of normal
distributions it depends on the mixture by mean m and variance v alone, and is
the mean of -log q over the two targets m - sqrt(v) and m + sqrt(v). Of others
it is a mean over samples of the mixture.

What the mixture cannot tell is how much of its spread the draws disagree about.
A second output of the student learns that, as an epistemic part of its own [2].

#### References

[1]: Anoop Korattikara, Vivek Rathod, Kevin Murphy, Max Welling. Bayesian Dark
     Knowledge. _NIPS_, 2015.
[2]: Andrey Malinin, Bruno Mlodozeniec, Mark Gales. Ensemble Distribution
     Distillation. _ICLR_, 2020.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import predictions
from tfp_sgmcmc.keras.draws import predictive as predictive_lib
from tfp_sgmcmc.keras.model import likelihood as likelihood_lib
from tfp_sgmcmc.keras.model import losses

__all__ = ['distill']


def distill(
    posterior: Any,
    student: keras.Model,
    x: hints.Data,
    *,
    loss: keras.losses.Loss | None,
    optimizer: Any,
    sample: Callable[[], np.ndarray],
    fit_arguments: dict[str, Any],
) -> keras.callbacks.History:
  """See `PosteriorSamples.distill`.

  Args:
    posterior: `PosteriorSamples`.
    student: As there.
    x: As there.
    loss: As there.
    optimizer: As there.
    sample: Callable that returns samples of the targets, `[num, n, ...]`,
      independent of each other for each example.
    fit_arguments: Those of `student.fit`.

  Returns:
    history: What `student.fit` returns.
  """
  if not isinstance(student, keras.Model):
    raise TypeError(
        f'student is of type {type(student).__name__}: a keras.Model is '
        'needed.')
  if student is posterior.model:
    raise ValueError(
        'student is the model of the posterior: pass another one, such as '
        'keras.models.clone_model(posterior.model).')
  if predictions.is_stream(x):
    raise TypeError(
        f'x is of type {type(x).__name__}: arrays of inputs are needed, in the '
        "model's structure.")
  mean, std = posterior.predict(x, return_std=True)
  term = predictive_lib.only_term(posterior.model, mean)
  x = keras.tree.map_structure(np.asarray, x)
  taught = term if loss is None else term._replace(loss=loss)
  if _has_units(term.loss) and (
      isinstance(loss, losses.LocationScale) and not _has_units(loss)):
    raise ValueError(
        f"The posterior's loss has center={term.loss.center} and "
        f"unit={term.loss.unit}, and the student's {loss.name!r} has none: "
        'give it the same.')
  if taught.is_classification != term.is_classification:
    raise ValueError(
        f"The student's loss is {taught.loss.name!r} and the posterior's "
        f'{term.loss.name!r}: both have to be of classes, or of numbers.')
  has_head = _has_second_output(student, x)
  head = _epistemic(posterior, term, taught.loss, x) if has_head else None
  if taught.is_classification:
    targets = mean[np.newaxis]
  elif isinstance(taught.loss, losses.GaussianLikelihood):
    targets = np.stack([mean - std, mean + std])
  else:
    targets = sample()
  copies = len(targets)
  y = np.concatenate(targets)
  if head is not None:
    y = [y, np.concatenate([head] * copies)]
  _compile(student, optimizer, _soft(taught), has_head)
  history = student.fit(
      keras.tree.map_structure(lambda a: np.concatenate([a] * copies), x), y,
      **fit_arguments)
  _compile(student, optimizer, taught.loss, has_head)
  return history


def _has_units(loss):
  return isinstance(loss, losses.LocationScale) and loss.has_units


def _has_second_output(student, x):
  """Whether the student has an output for the epistemic part."""
  outputs = student(keras.tree.map_structure(lambda a: a[:1], x))
  if not keras.tree.is_nested(outputs):
    return False
  if isinstance(outputs, dict) or len(outputs) != 2:
    raise ValueError(
        f'The student has the outputs {list(outputs)!r:.80}: one is needed, or '
        'a list of two, of which the second is the epistemic part.')
  return True


def _epistemic(posterior, term, loss, x):
  """What the draws disagree about, `[n, ...]` with a last axis of values."""
  found = posterior.uncertainty(x).epistemic
  if not term.is_classification:
    # In the student's units, so that neither loss swamps the other.
    unit = np.asarray(getattr(loss, 'unit', 1.), found.dtype)
    return np.sqrt(found) / unit
  return found if term.is_binary and found.ndim > 1 else found[..., np.newaxis]


def _compile(student, optimizer, loss, has_head):
  # Every compilation needs an optimizer of its own.
  student.compile(
      keras.optimizers.get(keras.optimizers.serialize(
          keras.optimizers.get(optimizer))),
      [loss, 'mse'] if has_head else loss)


def _soft(term: likelihood_lib.Term) -> keras.losses.Loss:
  """The loss of targets that are probabilities of classes."""
  if not term.is_sparse:
    return term.loss
  return keras.losses.CategoricalCrossentropy(from_logits=term.from_logits)
