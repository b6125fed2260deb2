"""A `tfd.JointDistribution` as a log prior and a log likelihood by example.

  log p(theta, y) = log p(theta) + sum_{i=1}^N log p(y_i | theta)

The state is unconstrained: phi with theta = b(phi), b the default bijector of
the model's event space. The log prior is then

  log p(b(phi)) + log |det db/dphi|.
"""

from collections.abc import Sequence
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import compat
from tfp_sgmcmc.internal import examples
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.internal import kept
from tfp_sgmcmc.internal import states

tfd = tfp.distributions

_Pinned = tfp.experimental.distributions.JointDistributionPinned
_AUTO_BATCHED = (
    tfd.JointDistributionNamedAutoBatched,
    tfd.JointDistributionSequentialAutoBatched,
    tfd.JointDistributionCoroutineAutoBatched)
_SEED = (0, 0)  # Of draws whose values do not count.
_MEND = (
    'Where examples differ in their values alone, let this part be '
    'tfd.Sample(one_example, num_examples), or the distribution of one '
    'example. Where each has covariates, pass a function that returns the '
    'joint distribution of the examples whose covariates it gets, '
    'from_joint_distribution(lambda x: tfd.JointDistribution...(...), data, '
    'covariates=x), with the examples along the first axis: '
    'tfd.Independent(tfd.Normal(loc, scale), 1), loc of shape [n].')


class JointModel:
  """The functions of a posterior, read off a joint distribution.

  A model is asked about one theta at a time, as it is written for one;
  `tf.vectorized_map` goes over the chains. Bijectors run in graphs alone: TFP's
  caches of them print errors where eager tensors in dicts are freed.
  """

  def __init__(
      self,
      joint: tfp.distributions.JointDistribution,
      data: Any,
      covariates: Any = None,
  ):
    """Reads the joint distribution, and tries it on the first examples.

    Args:
      joint: `tfd.JointDistribution`; or a pinned one, whose pins are constants
        of the model; or a callable of covariates that returns either.
      data: Dict, the observed parts by name, each with a leading axis of N
        examples.
      covariates: Nested tensors with the same leading axis, or None.

    Raises:
      TypeError: If an argument is of the wrong type.
      ValueError: If a name is none of the model's, no part is left to sample,
        one is discrete, or the likelihood is not a sum over examples.
    """
    _check_arguments(joint, data, covariates)
    self._joint = joint
    self._has_covariates = covariates is not None
    self.data = examples.to_tensors(
        {'observed': data, 'covariates': covariates}
        if self._has_covariates else data)
    # The prior does not depend on the examples: some serve for all.
    self._few = self._first(2)
    model, constants = self._model(self._few)
    names = compat.joint_names(model)
    _check_names(names, data, constants)
    draw = _of_model(model, self._sample(model))
    self._convert(draw)
    self._few = self._first(2)
    self._constants = constants
    self._names = [n for n in names if n not in data and n not in constants]
    self._pinned = model.experimental_pin(
        **constants, **{name: draw[name] for name in data})
    self._structure = self._pinned.sample_unpinned(seed=_SEED)
    self._check_latent()
    self._check_batch_shape()
    self._event_shapes = [part.shape for part in self._start()]
    self._data_ranks = tf.nest.map_structure(
        lambda leaf: leaf.shape.rank, self.data)
    self._check_examples()

  def log_prior(self, *phi: tf.Tensor) -> tf.Tensor:
    """log p(b(phi)) + log |det db/dphi|, one value a chain."""
    return self._each_chain(self._log_prior_of_one, phi)

  def _log_prior_of_one(self, phi):
    phi = self._pack(phi)
    theta = self._bijector().forward(phi)
    distributions = self._distributions(theta, self._few)
    values = {**self._constants, **self._latent(theta)}
    return self._bijector().forward_log_det_jacobian(phi) + sum(
        tf.reduce_sum(distributions[name].log_prob(value))
        for name, value in values.items())

  def log_likelihood(self, *phi_and_batch: hints.Nested) -> tf.Tensor:
    """log p(y_i | b(phi)) of each example, `chains + [n]`."""
    *phi, batch = phi_and_batch
    return self._each_chain(self._log_likelihood_of_one, phi, batch)

  def _log_likelihood_of_one(self, phi, batch):
    theta = self._bijector().forward(self._pack(phi))
    distributions = self._distributions(theta, batch)
    return sum(
        _log_prob_by_example(name, distributions[name], values)
        for name, values in self._observed(batch).items())

  @property
  def part_names(self) -> list[str]:
    """The name in the model of each part of the state, in its order."""
    names = {
        name: tf.nest.map_structure(lambda _, name=name: name, value)
        for name, value in self._latent(self._structure).items()}
    return tf.nest.flatten(
        names if isinstance(self._structure, dict) else list(names.values()))

  def constrain(self, state: hints.State) -> Any:
    """theta = b(phi), in the structure of the model, for any leading axes."""
    return self._pack(
        self._each_chain(self._theta_of_one, states.to_parts(state)))

  def _theta_of_one(self, phi):
    return tf.nest.flatten(self._bijector().forward(self._pack(phi)))

  def sample_prior(self, sample_shape: Sequence[int], seed: tf.Tensor) -> list:
    """Draws of phi from the prior, `sample_shape` in front of each part."""
    shape = list(sample_shape)
    def one(i):
      return self._inverse(
          self._pinned.sample_unpinned(seed=random.fold_in(seed, i)))

    flat = compat.in_graph(lambda numbers: tf.map_fn(
        one, numbers, fn_output_signature=[
            tf.TensorSpec.from_tensor(part) for part in self._start()]))(
                tf.range(math.prod(shape)))
    return [tf.reshape(part, shape + part.shape[1:]) for part in flat]

  def sample_predictive(
      self, phi: Sequence[tf.Tensor], covariates: hints.Nested, seed: tf.Tensor,
  ) -> dict[str, Any]:
    """Observed parts drawn given phi, any leading axes of it in front.

    Args:
      phi: The parts of phi, with any leading axes.
      covariates: Those of the examples to draw; None for those of the data.
      seed: Stateless seed.

    Returns:
      samples: By the names of the observed parts.

    Raises:
      ValueError: If there are covariates for a model without, or of another
        structure.
    """
    self._check_state(phi)
    model, constants = self._model(self._of_covariates(covariates))
    names = list(self._observed(self.data))

    def observed(values):
      values = _of_model(model, values)
      return {name: values[name] for name in names}

    def one(i_and_phi):
      i, phi = i_and_phi
      theta = self._bijector().forward(self._pack(phi))
      return observed(model.sample(
          seed=random.fold_in(seed, i), **constants, **self._latent(theta)))

    axes = phi[0].shape.rank - self._event_shapes[0].rank
    lead = compat.shape(phi[0])[:axes]
    flat = [
        tf.reshape(part, tf.concat([[-1], compat.shape(part)[axes:]], axis=0))
        for part in phi]
    specs = tf.nest.map_structure(
        tf.TensorSpec.from_tensor, observed(self._sample(model)))
    samples = compat.in_graph(lambda flat: tf.map_fn(
        one, (tf.range(tf.shape(flat[0])[0]), flat),
        fn_output_signature=specs))(flat)
    return tf.nest.map_structure(
        lambda t: tf.reshape(t, tf.concat([lead, t.shape[1:]], axis=0)),
        samples)

  def _of_covariates(self, covariates):
    """A batch with these covariates; None for those of the data."""
    if covariates is None:
      return self.data
    if not self._has_covariates:
      raise ValueError(
          'There are covariates, and the joint distribution is no function of '
          'them: leave them out.')
    own = self.data['covariates']
    try:
      return {'covariates': tf.nest.map_structure(
          lambda old, new: tf.cast(new, old.dtype), own, covariates)}
    except (TypeError, ValueError) as error:
      raise ValueError(
          f'The covariates are {checks.shorten(covariates)}: they have to have '
          'the structure of those of the data.') from error

  def _model(self, batch):
    """The joint distribution of the examples of a batch; its constants."""
    model = self._joint
    if self._has_covariates:
      model = model(batch['covariates'])
    constants = {}
    if isinstance(model, _Pinned):
      model, constants = model.distribution, dict(model.pins)
    if not isinstance(model, tfd.JointDistribution):
      raise TypeError(
          f'joint returned {model!r} for covariates of some examples: it has '
          'to return a tfd.JointDistribution.')
    return model, constants

  def _sample(self, model):
    try:
      return model.sample(seed=_SEED)
    except (tf.errors.InvalidArgumentError, TypeError, ValueError) as error:
      raise ValueError(
          'The model cannot be sampled for two examples: it raised '
          f'{type(error).__name__}: {error}. {self._hint()}') from error

  def _hint(self):
    """What to say of an error where the covariates' dtype may be the cause."""
    floats = {
        leaf.dtype.name for leaf in tf.nest.flatten(self.data.get('covariates'))
        if leaf.dtype.is_floating} if self._has_covariates else set()
    if floats <= {'float32'}:
      return ''
    return (
        f'The covariates are {" and ".join(sorted(floats))}: convert them to '
        'the dtype of the model, as by tf.cast(x, tf.float32). ')

  def _observed(self, batch):
    return batch['observed'] if self._has_covariates else batch

  def _first(self, number):
    return tf.nest.map_structure(lambda leaf: leaf[:number], self.data)

  def _distributions(self, theta, batch):
    """The distribution of each part given the others, by name."""
    model, constants = self._model(batch)
    distributions, _ = model.sample_distributions(
        seed=_SEED, **constants, **self._latent(theta),
        **self._observed(batch))
    return _of_model(model, distributions)

  def _bijector(self):
    """A new b: where a cache outlives its values, TFP prints errors of it."""
    return self._pinned.experimental_default_event_space_bijector()

  def _pack(self, phi):
    return tf.nest.pack_sequence_as(self._structure, phi)

  def _inverse(self, theta):
    return tf.nest.flatten(self._bijector().inverse(theta))

  def _start(self):
    return compat.in_graph(self._inverse)(self._structure)

  def _each_chain(self, fn, phi, batch=None):
    """`fn` of the parts of a chain, and of the batch where there is one.

    `fn` is a method: it is traced once for each form of its arguments.
    """
    self._check_state(phi)
    axes = phi[0].shape.rank - self._event_shapes[0].rank
    has_own = batch is not None and axes > 0 and (
        tf.nest.flatten(batch)[0].shape.rank
        > tf.nest.flatten(self._data_ranks)[0])
    arguments = [list(phi)] if batch is None else [list(phi), batch]
    if axes == 0:
      return kept.function(self, (fn.__name__, False), fn)(*arguments)
    chains = compat.shape(phi[0])[:axes]
    num_mapped = len(arguments) if has_own else 1
    flat = tf.nest.map_structure(
        lambda t: tf.reshape(
            t, tf.concat([[-1], compat.shape(t)[axes:]], axis=0)),
        arguments[:num_mapped])

    def each(*arguments):
      return tf.vectorized_map(
          lambda one: fn(*one, *arguments[num_mapped:]),
          list(arguments[:num_mapped]))

    values = kept.function(self, (fn.__name__, True, has_own), each)(
        *flat, *arguments[num_mapped:])
    return tf.nest.map_structure(
        lambda t: tf.reshape(
            t, tf.concat([chains, compat.shape(t)[1:]], axis=0)), values)

  def _check_state(self, phi):
    """Raises where the parts are not those of the model, in their order."""
    wanted, given = self._event_shapes, [part.shape for part in phi]
    chains = given[0][:given[0].rank - wanted[0].rank] if given else None
    if len(given) == len(wanted) and all(
        shape.is_compatible_with(chains + event)
        for shape, event in zip(given, wanted)):
      return
    parts = ', '.join(
        f'{name} {list(event)}' for name, event in zip(
            self.part_names, wanted))
    raise ValueError(
        f'The state has parts of shapes {[list(shape) for shape in given]}: a '
        f'list of {parts} is needed, each with the axes of the chains in '
        'front. Draw one by posterior.sample_prior(...).')

  def _convert(self, draw):
    """Observed numbers in the dtype of the model, where that is of floats."""
    observed = self._observed(self.data)
    for name, values in observed.items():
      dtype = tf.convert_to_tensor(draw[name]).dtype
      if dtype.is_floating:
        observed[name] = tf.cast(values, dtype)

  def _latent(self, values):
    """Values of the parts that are sampled, in their structure, by name."""
    return _by_name(self._names, values)

  def _check_latent(self):
    """Raises where a part cannot be sampled by its gradient."""
    for name, value in self._latent(self._structure).items():
      for leaf in tf.nest.flatten(value):
        if not leaf.dtype.is_floating:
          raise ValueError(
              f'The part {name!r} of the joint distribution is '
              f'{leaf.dtype.name}, and these samplers move continuously: sum '
              'over its values, as tfd.MixtureSameFamily does, or pin it.')

  def _check_batch_shape(self):
    """Raises where the model is a batch of models."""
    model, _ = self._model(self._few)
    if isinstance(model, _AUTO_BATCHED):
      return
    shapes = _of_model(model, model.batch_shape)
    for name in self._names:
      if shapes[name].rank:
        raise ValueError(
            f'The part {name!r} of the joint distribution has the batch shape '
            f'{shapes[name]}, and one model is needed, not a batch of them: '
            'make its axes a part of the event by tfd.Independent or '
            f'tfd.Sample, or take {type(model).__name__}AutoBatched.')

  def _check_examples(self):
    """Raises where the model is no prior and a sum over examples."""
    if self._has_covariates:
      self._check_lengths()
    else:
      self._check_number()
    try:
      self.log_likelihood(*self._start(), self._few)
    except _NotByExample:
      raise
    except (tf.errors.InvalidArgumentError, TypeError, ValueError) as error:
      raise _NotByExample(
          'The likelihood cannot be told apart by example: for two of the '
          f'examples the model raised {type(error).__name__}: {error}. '
          f'{self._hint()}{_MEND}') from error
    self._check_prior()

  def _check_lengths(self):
    """Raises where a part to be sampled has a value for each example."""
    model, _ = self._model(self._first(3))
    draw = _of_model(model, self._sample(model))
    for name, value in self._latent(self._structure).items():
      for two, three in zip(*map(tf.nest.flatten, (value, draw[name]))):
        if two.shape != three.shape:
          raise ValueError(
              f'The part {name!r} has shape {two.shape} for two examples and '
              f'{three.shape} for three: a parameter for each example cannot '
              'be sampled from minibatches. Integrate it out, or let its '
              'length not depend on the examples.')

  def _check_number(self):
    """Raises where the model has another number of examples than the data."""
    distributions = self._distributions(self._structure, self.data)
    for name, values in self.data.items():
      if isinstance(distributions[name], tfd.Sample):
        shape = np.reshape(distributions[name].sample_shape, [-1])
        number = int(shape[0]) if len(shape) else values.shape[0]
        if number != values.shape[0]:
          raise ValueError(
              f'The model has {number} examples of {name!r}, tfd.Sample(..., '
              f'{number}), and the data {values.shape[0]}.')

  def _check_prior(self):
    """Raises where the prior is another with other examples."""
    others = tf.nest.map_structure(lambda leaf: leaf[-3:], self.data)
    here, there = (
        self._distributions(self._structure, batch)
        for batch in (self._few, others))
    for name, value in {
        **self._constants, **self._latent(self._structure)}.items():
      log_probs = [
          float(tf.reduce_sum(distributions[name].log_prob(value)))
          for distributions in (here, there)]
      if not np.isclose(*log_probs, rtol=1e-4, atol=1e-4):
        raise ValueError(
            f'The prior of the part {name!r} depends on the examples: its log '
            f'density is {log_probs[0]:g} with the first two, and '
            f'{log_probs[1]:g} with the last three. A part that the examples '
            'inform has to come before them in the model.')


class _NotByExample(ValueError):
  """A likelihood that is no sum over examples."""


def _log_prob_by_example(name, distribution, values):
  """log p(y_i) of each of n examples, `[n]`."""
  each = distribution
  if isinstance(distribution, tfd.Independent):
    each = distribution.distribution
  elif isinstance(distribution, tfd.Sample):
    shape = tf.reshape(distribution.sample_shape, [-1])
    each = tfd.Sample(distribution.distribution, shape[1:])
  log_prob = each.log_prob(values)
  event = each.event_shape.rank
  wanted = values.shape[:values.shape.rank - event]
  if wanted.rank == 0 or log_prob.shape != wanted:
    raise _NotByExample(
        f'The likelihood of {name!r} cannot be told apart by example: for '
        f'values of shape {values.shape}, of which the first axis are the '
        f'examples, {type(distribution).__name__} has log densities of shape '
        f'{log_prob.shape}. {_MEND}')
  return tf.reduce_sum(log_prob, axis=range(1, wanted.rank))


def _of_model(model, values):
  """Values of all parts of a model, in its structure, by name."""
  return _by_name(compat.joint_names(model), values)


def _by_name(names, values):
  return dict(values) if isinstance(values, dict) else dict(zip(names, values))


def _check_arguments(joint, data, covariates):
  """Raises where an argument is not what `from_joint_distribution` takes."""
  if isinstance(joint, (tfd.JointDistribution, _Pinned)):
    if covariates is not None:
      raise ValueError(
          'There are covariates, and the joint distribution is no function of '
          'them: pass a function that returns it for the covariates of some '
          'examples, lambda x: tfd.JointDistributionNamed(...).')
  elif not callable(joint):
    raise TypeError(
        f'joint is {joint!r}, of type {type(joint).__name__}: it has to be a '
        'tfd.JointDistribution, or a function of covariates that returns one.')
  elif covariates is None:
    raise ValueError(
        'joint is a function, and there are no covariates to call it with: '
        'pass covariates=..., or the joint distribution itself.')
  if not isinstance(data, dict) or not data:
    raise TypeError(
        f'data is {checks.shorten(data)}: a dict of the observed parts by '
        "their names is needed, {'y': y}.")


def _check_names(names, data, constants):
  """Raises where a name is not the model's, or none is left to sample."""
  for name in data:
    if name in constants:
      raise ValueError(f'{name!r} is pinned already: leave it out of data.')
    if name not in names:
      raise ValueError(
          f'data has {name!r}, and the parts of the joint distribution are '
          f'{", ".join(names)}.')
  if not set(names) - set(data) - set(constants):
    raise ValueError(
        f'All parts of the joint distribution, {", ".join(names)}, are '
        'observed or pinned: there is nothing to sample.')
