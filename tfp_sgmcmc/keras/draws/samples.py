"""Draws from the posterior of a model's weights, and their predictions.

  p(y | x, data) = 1/S sum_{s=1}^S p(y | x, theta_s)
"""

from collections.abc import Iterator
from collections.abc import Sequence
import math
from typing import Any

import keras
import numpy as np

from tfp_sgmcmc import store as store_lib
from tfp_sgmcmc.internal import checks
from tfp_sgmcmc.internal import hints
from tfp_sgmcmc.keras.draws import averages
from tfp_sgmcmc.keras.draws import calibrated as calibrated_lib
from tfp_sgmcmc.keras.draws import chosen_draws
from tfp_sgmcmc.keras.draws import distillation
from tfp_sgmcmc.keras.draws import exports
from tfp_sgmcmc.keras.draws import mixtures
from tfp_sgmcmc.keras.draws import model_draws as draws_lib
from tfp_sgmcmc.keras.draws import one_pass as pass_lib
from tfp_sgmcmc.keras.draws import predictions
from tfp_sgmcmc.keras.draws import scores
from tfp_sgmcmc.keras.draws import serving
from tfp_sgmcmc.keras.draws import thinning
from tfp_sgmcmc.keras.model import model_record
from tfp_sgmcmc.keras.model import network

__all__ = ['PosteriorSamples']

# By these names they stand in what earlier versions pickled.
PredictiveEntropy = averages.PredictiveEntropy
PredictiveVariance = averages.PredictiveVariance


class PosteriorSamples:
  """Draws of a model's trainable weights, with their moving statistics.

  A draw of `PosteriorSampling` holds the statistics of BatchNormalization that
  it was drawn with (in general, all that training computes besides weights).
  Predictions use these statistics, not the model's current ones. Frozen weights
  are those of the model.

  Predictions run through one compiled function for all draws, with
  `draw_batch_size` draws and `batch_size` examples at a time. The data are read
  once. Apart from the results, memory does not grow with the number of draws or
  examples.

  Draws of a kernel with weights (`AdaptiveTime`) keep them, `log_weights`:
  means over draws are weighted means. Results with a value for each draw
  (`weights`, `log_likelihood`, `predict` with `return_samples`) are not
  weighted.

  Pickling (and `copy.deepcopy`) includes the model and the draws; draws of a
  directory are read into memory.

  #### Examples

  >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
  >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
  >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
  ...     model, [tf.ones([5, 2, 1]), tf.zeros([5, 1])])
  >>> posterior
  <PosteriorSamples: 5 draws of 3 weights>
  >>> len(posterior[1:3]), posterior[0][1]
  (2, array([0.], dtype=float32))
  >>> posterior.predict(tf.ones([3, 2]))[:, 0]
  array([2., 2., 2.], dtype=float32)
  """

  def __init__(
      self,
      model: keras.Model,
      draws: draws_lib.ModelDraws,
      *,
      indices: Sequence[int] | None = None,
      predictor: predictions.Predictor | None = None,
  ):
    """Makes samples of draws; see also `load`, `from_arrays`.

    Args:
      model: The model. It is left as it is.
      draws: `ModelDraws`, of one chain or several.
      indices: The draws to take; None for all, also those to come.
      predictor: What has been compiled for other draws of the model; None to
        compile as it is needed.
    """
    network.check_kind(model)
    self._chosen = chosen_draws.ChosenDraws(model, draws, indices, predictor)

  @classmethod
  def from_arrays(
      cls, model: keras.Model, arrays: Sequence[Any],
      predictor: predictions.Predictor | None = None,
  ) -> 'PosteriorSamples':
    """Samples from stacked weights.

    Args:
      model: Built model.
      arrays: One array `[draws, ...]` for each trainable weight.
      predictor: What has been compiled for other draws of the model; None to
        compile as it is needed.

    Returns:
      samples: `PosteriorSamples`.

    Raises:
      ValueError: If the shapes are not those of the model's weights, or values
        are NaN or infinite.
      TypeError: If values are no real numbers.
    """
    network.check_kind(model)
    return cls(
        model, draws_lib.from_arrays(model, arrays), predictor=predictor)

  @classmethod
  def load(
      cls,
      directory: hints.Path,
      model: keras.Model,
  ) -> 'PosteriorSamples':
    """Reads draws that `save`, or `PosteriorSampling(directory=...)`, wrote.

    Args:
      directory: Path of the directory.
      model: A built model of the same architecture, the same layers frozen;
        compiled, for predictions. Its trainable weights and moving statistics
        do not matter; frozen weights have to be as they were. A `UserWarning`
        names layers made with other arguments (another activation), another
        loss, and changed code in your own layers and functions.

    Returns:
      samples: `PosteriorSamples`; draws are read from disk as they are used.

    Raises:
      FileNotFoundError: If there are no draws.
      ValueError: If the draws are damaged, or of another model (other weights,
        or frozen weights with other values).
    """
    draws = draws_lib.load(directory, model)
    model_record.check(
        store_lib.read_about(directory, 'fit'), model, draws.extras,
        str(directory))
    return cls(model, draws)

  @classmethod
  def concatenate(
      cls, chains: Sequence['PosteriorSamples']) -> 'PosteriorSamples':
    """Pools the draws of several chains, as of separate calls of `fit`.

    The draws stay where they are, in memory or on disk. Predictions are means
    over all draws. `chains` returns the single chains, and
    `diagnostics.summary` compares them.

    Args:
      chains: List of `PosteriorSamples` of one architecture. The result has the
        model of the first. If an element holds several chains already, each of
        them counts.

    Returns:
      samples: `PosteriorSamples`.

    Raises:
      ValueError: If there are none, or they are of different weights, or of
        models that differ in their layers or in weights that are not sampled.
      TypeError: If one is no `PosteriorSamples`.

    #### Examples

    >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    >>> chains = [
    ...     sgmcmc.keras.PosteriorSamples.from_arrays(
    ...         model, [k * tf.ones([5, 2, 1]), tf.zeros([5, 1])])
    ...     for k in range(3)]
    >>> pooled = sgmcmc.keras.PosteriorSamples.concatenate(chains)
    >>> len(pooled), pooled.num_chains, len(pooled.chains[1])
    (15, 3, 5)
    """
    chains = list(chains)
    for chain in chains:
      if not isinstance(chain, PosteriorSamples):
        raise TypeError(
            f'The chains hold {chain!r}: a list of PosteriorSamples is needed, '
            'the .posterior of each callback.')
    pooled = chosen_draws.pooled([chain._chosen for chain in chains])
    return cls(pooled.model, pooled.draws)

  def save(self, directory: hints.Path) -> None:
    """Writes the draws to a directory, from which `load` reads them.

    They are kept as arrays, several draws to a file; for files that Keras reads
    see `export_weights`.

    Args:
      directory: Path of a directory without draws.

    Raises:
      FileExistsError: If there are draws in it.
    """
    exports.save(self._chosen, directory)

  def export_weights(self, directory: hints.Path) -> list[str]:
    """Writes each draw as a Keras weights file, `draw_000000.weights.h5`, ....

    `model.load_weights(file)` puts such a draw into a model without this
    library. Weights that are not sampled are written as the model has them now.
    The files are for use elsewhere, and `load` does not read them: Keras does
    not always write what was sampled (a layer with LoRA writes its kernel with
    the low-rank part merged into it). Weighted draws are written at equal
    weights, by `resampled()`.

    Args:
      directory: Path of a directory without such files, made if need be.

    Returns:
      paths: The paths of the files, one for each draw.

    Raises:
      FileExistsError: If one of the files is there.
    """
    return exports.weights_files(self._chosen, directory)

  @property
  def model(self) -> keras.Model:
    """The model whose weights the draws are."""
    return self._chosen.model

  @property
  def steps(self) -> list[int]:
    """The step of the chain at which each draw was made."""
    return self._chosen.steps

  @property
  def num_chains(self) -> int:
    """The number of chains that the draws come of."""
    return len(set(self._chosen.chain_numbers))

  @property
  def chains(self) -> list['PosteriorSamples']:
    """The draws of each chain, as `PosteriorSamples`."""
    return [self._of(chain) for chain in self._chosen.chains]

  @property
  def log_weights(self) -> np.ndarray | None:
    """The logarithm of each draw's weight, `[draws]`.

    None where all count the same.
    """
    return self._chosen.log_weights

  def resampled(self, seed: int = 0) -> 'PosteriorSamples':
    """Draws at equal weights: each is repeated in proportion to its weight.

    Each chain is resampled separately, by systematic resampling. The draws keep
    their order, and stay in memory or on disk.

    Args:
      seed: Python `int`.

    Returns:
      samples: `PosteriorSamples` with as many draws; these same samples if they
        have no weights.
    """
    return self._of(self._chosen.resampled(seed))

  @property
  def start(self) -> 'PosteriorSamples | None':
    """The weights before the first step of the kernel, one draw a chain.

    `diagnostics.summary(posterior, x, y)` compares their predictions with the
    posterior's. They are kept with the draws, in memory or on disk.

    Returns:
      start: `PosteriorSamples`; None if a chain's start is not known, as with
        `from_arrays`.
    """
    start = self._chosen.start
    return None if start is None else self._of(start)

  @property
  def weights(self) -> dict[str, np.ndarray]:
    """All draws in memory: one array `[draws, ...]` for each weight's path."""
    self._chosen.check_weights()
    return dict(zip(
        network.paths(self.model.trainable_variables), self._chosen.read()))

  def arrays(self) -> dict[str, np.ndarray]:
    """All that the draws hold, in memory, by name, as `save` writes it."""
    return self._chosen.arrays()

  def __len__(self) -> int:
    return len(self._chosen)

  def __repr__(self):
    size = sum(math.prod(v.shape) for v in self._chosen.variables)
    more = f', {self.num_chains} chains' if self.num_chains > 1 else ''
    return f'<PosteriorSamples: {len(self):,} draws of {size:,} weights{more}>'

  def __getitem__(self, index: int | slice) -> Any:
    """A draw, as a list of arrays; for a slice, `PosteriorSamples`."""
    self._chosen.check_weights()
    every = self._chosen.indices
    if isinstance(index, slice):
      return self._of(self._chosen.some(every[index]))
    return [array[0] for array in self._chosen.draws.read([every[index]])]

  def __reduce__(self):
    # Neither a compiled function nor an open directory can be pickled.
    return _unpickle, (
        type(self), self.model, self.arrays(), self._chosen.draws.start)

  def __iter__(self) -> Iterator[list[np.ndarray]]:
    return (self[k] for k in range(len(self)))

  def predict(
      self,
      x: hints.Data,
      batch_size: int = 128,
      return_samples: bool = False,
      draw_batch_size: int = 8,
      steps: int | None = None,
      return_std: bool = False,
  ) -> Any:
    """The mean of the predictive distribution, and its standard deviation.

    Class probabilities for crossentropies (also where the model gives logits),
    the distribution's mean for the package's likelihoods, the outputs as they
    are else; with `return_samples` also where TFP does not know the mean.

    The data are read once, in blocks that fit in memory; all draws predict on
    each block. If a pipeline shuffles, predictions are in the order of that one
    pass.

    Args:
      x: Inputs: arrays in the model's structure; or a `tf.data.Dataset`, a
        `keras.utils.PyDataset` or a generator of batches, as `model.predict`
        takes them.
      batch_size: Python `int`, examples at a time; batches of a dataset have
        their own size.
      return_samples: Python `bool`: each draw's prediction, `[draws, n, ...]`,
        in place of their mean `[n, ...]`.
      draw_batch_size: Python `int`, draws at a time.
      steps: Python `int`, the number of batches of a dataset; None for all.
      return_std: Python `bool`: the pair of the mean and the standard
        deviation of the predictive distribution, noise of the targets
        included. For classes it is that of the class's indicator, sqrt(p (1 -
        p)); an output without a loss has None.

    Returns:
      predictions: Arrays in the structure of the model's outputs; a pair of
        such structures with `return_std`.

    Raises:
      ValueError: If there are no draws or no rows, the model is not compiled or
        does not take the inputs, the outputs are NaN or infinite (as where
        inputs hold NaN), those of a crossentropy without `from_logits` are no
        probabilities, or the data have no end and `steps` is None.
        Also with both `return_std` and `return_samples`, or `return_std` and a
        loss that is no distribution (`NegativeLogLikelihood`); or where TFP
        does not know the mean (`OrderedLogistic`) and it is asked for.
      TypeError: If `x` holds no arrays.
    """
    if return_std and return_samples:
      raise ValueError(
          'return_std is that of the mean over draws, and return_samples '
          'keeps the draws apart: pass one of the two.')
    one_pass = self._over(x, batch_size, draw_batch_size, steps)
    if return_std:
      return averages.mean_and_deviation(one_pass)
    return averages.mean(one_pass, return_samples)

  def predictive_entropy(
      self,
      x: hints.Data,
      batch_size: int = 128,
      draw_batch_size: int = 8,
      steps: int | None = None,
  ) -> averages.PredictiveEntropy:
    """How uncertain the class of each example is, and why.

      H[mean_s p_s] = mean_s H[p_s] + mutual information

    Args:
      x: Inputs, as for `predict`.
      batch_size: Python `int`, examples at a time.
      draw_batch_size: Python `int`, draws at a time.
      steps: Python `int`, the number of batches of a dataset; None for all.

    Returns:
      entropy: `PredictiveEntropy`, in nats; shape `[n]`, or `[n, ...]` where
        the output has more axes than that of the classes.

    Raises:
      ValueError: If the model has not one output with class probabilities, and
        as for `predict`.
    """
    return averages.entropy(
        self._over(x, batch_size, draw_batch_size, steps))

  def uncertainty(
      self,
      x: hints.Data,
      batch_size: int = 128,
      draw_batch_size: int = 8,
      steps: int | None = None,
  ) -> Any:
    """How uncertain each target is, and how much of it more data would remove.

    For classes these are entropies, as in `predictive_entropy`. For other
    losses that are distributions they are variances, by the law of total
    variance:

      Var[y] = mean_s Var[y | theta_s] + Var_s E[y | theta_s]

    Args:
      x: Inputs, as for `predict`.
      batch_size: Python `int`, examples at a time.
      draw_batch_size: Python `int`, draws at a time.
      steps: Python `int`, the number of batches of a dataset; None for all.

    Returns:
      uncertainty: `PredictiveVariance` or `PredictiveEntropy`, with `total`,
        `aleatoric` and `epistemic`, in the structure of the model's outputs;
        None for an output without a loss.

    Raises:
      ValueError: If a loss is no distribution (`NegativeLogLikelihood`), and
        as for `predict`.

    #### Examples

    Two lines through the origin, of slopes 0 and 2, and noise of scale 1:

    >>> model = keras.Sequential([
    ...     keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
    >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
    ...     model, [tf.constant([[[0.]], [[2.]]])])
    >>> variance = posterior.uncertainty(tf.constant([[0.], [3.]]))
    >>> variance.aleatoric[:, 0], variance.epistemic[:, 0]
    (array([1., 1.]), array([0., 9.]))
    """
    return averages.uncertainty(
        self._over(x, batch_size, draw_batch_size, steps))

  def predictive(
      self,
      x: hints.Data,
      batch_size: int = 128,
      draw_batch_size: int = 8,
      steps: int | None = None,
  ) -> Any:
    """The predictive distribution of the targets, a mixture over the draws.

      p(y | x, data) = sum_s w_s p(y | x, theta_s)

    with w_s = 1/S, or the draws' weights. Its components are the distributions
    of the compiled loss (`GaussianLikelihood`, ..., `DistributionLoss`,
    "poisson"). For crossentropies it is the distribution of the class by the
    mean probabilities: `tfd.Categorical` of class numbers (also where targets
    are one-hot), `tfd.Bernoulli` for binary ones.

    Each element of the batch shape has its own mixture. To draw targets of
    several elements and outputs jointly, from one draw of the weights, use
    `sample`. Unlike the results of other methods, mixtures hold values for each
    draw and example in memory.

    Args:
      x: Inputs, as for `predict`.
      batch_size: Python `int`, examples at a time.
      draw_batch_size: Python `int`, draws at a time.
      steps: Python `int`, the number of batches of a dataset; None for all.

    Returns:
      predictive: `tfd.Distribution` of the batch and event shape of the loss's
        own distribution, else `tfd.MixtureSameFamily`; in the structure of the
        model's outputs, None for an output without a loss.

    Raises:
      ValueError: If a loss is no distribution (`NegativeLogLikelihood`), one
        draw's distributions cannot be stacked, and as for `predict`.

    #### Examples

    >>> model = keras.Sequential([
    ...     keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
    >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
    ...     model, [tf.constant([[[0.]], [[2.]]])])
    >>> mixture = posterior.predictive(tf.constant([[0.], [3.]]))
    >>> mixture.batch_shape, mixture.cdf([[0.], [6.]]).numpy()[:, 0]
    (TensorShape([2, 1]), array([0.5 , 0.75], dtype=float32))
    """
    return mixtures.predictive(
        self._over(x, batch_size, draw_batch_size, steps))

  def sample(
      self,
      x: hints.Data,
      num_samples: int = 1,
      seed: int = 0,
      batch_size: int = 128,
      draw_batch_size: int = 8,
      steps: int | None = None,
  ) -> Any:
    """Targets drawn from the predictive distribution.

    For each sample one draw of the weights is chosen, by its weight, for all
    examples and outputs; then the targets are drawn by the loss's
    distribution. So functions of several targets, such as their sum, have the
    posterior's law.

    Args:
      x: Inputs, as for `predict`.
      num_samples: Python `int`, the number of samples.
      seed: Python `int`. The same samples need the same `batch_size`.
      batch_size: Python `int`, examples at a time.
      draw_batch_size: Python `int`, draws at a time.
      steps: Python `int`, the number of batches of a dataset; None for all.

    Returns:
      samples: Arrays `[num_samples, n, ...]` in the structure of the model's
        outputs; of crossentropies class numbers; None for an output without a
        loss.

    Raises:
      ValueError: If a loss is no distribution (`NegativeLogLikelihood`), and
        as for `predict`.

    #### Examples

    >>> model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
    >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
    ...     model, [tf.ones([5, 2, 1]), tf.zeros([5, 1])])
    >>> posterior.sample(tf.ones([3, 2]), 10, seed=1).shape
    (10, 3, 1)
    """
    number = checks.positive_integer('num_samples', num_samples)
    seed = checks.non_negative_integer('seed', seed)
    return mixtures.sample(
        self._over(x, batch_size, draw_batch_size, steps), number, seed)

  def quantiles(
      self,
      x: hints.Data,
      q: hints.TensorLike,
      batch_size: int = 128,
      draw_batch_size: int = 8,
      steps: int | None = None,
  ) -> Any:
    """Quantiles of the predictive distribution.

    The smallest y with F(y) >= q, F the mixture's cumulative distribution
    function, by bisection in float64; each element of the target by itself.
    Nothing is drawn: the error is that of rounding to Keras' float type.

    Args:
      x: Inputs, as for `predict`.
      q: Probabilities above 0 and below 1: a number, or a list of them.
      batch_size: Python `int`, examples at a time: memory grows with it times
        the number of draws.
      draw_batch_size: Python `int`, draws at a time.
      steps: Python `int`, the number of batches of a dataset; None for all.

    Returns:
      quantiles: Arrays `[n, ...]`, or `[len(q), n, ...]` for a list, in units
        of the target and in the structure of the model's outputs; None for an
        output of classes or without a loss.

    Raises:
      ValueError: If no output has quantiles (classes), a loss is no
        distribution (`NegativeLogLikelihood`) or one without a cdf, q is out of
        range, and as for `predict`.

    #### Examples

    >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
    >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
    ...     model, [tf.ones([5, 1, 1]), tf.zeros([5, 1])])
    >>> posterior.quantiles(tf.ones([1, 1]), [0.05, 0.95])[:, 0, 0].round(3)
    array([-0.645,  2.645], dtype=float32)
    """
    p = checks.probabilities('q', q)
    return mixtures.quantiles(
        self._over(x, batch_size, draw_batch_size, steps), p)

  def interval(
      self,
      x: hints.Data,
      level: float = 0.9,
      kind: str = 'equal_tails',
      batch_size: int = 128,
      draw_batch_size: int = 8,
      steps: int | None = None,
  ) -> Any:
    """An interval for each target that holds it with a probability.

    Args:
      x: Inputs, as for `predict`.
      level: Python `float`, the probability; above 0 and below 1. Of counts
        the interval, both ends included, holds at least that.
      kind: 'equal_tails', between the quantiles (1 - level) / 2 and (1 +
        level) / 2; or 'shortest', the shortest single interval, also where the
        density has several peaks. Its length is the shortest to about 1e-4 of
        it, and its ends are less exact than those of 'equal_tails'.
      batch_size: Python `int`, examples at a time: memory grows with it times
        the number of draws.
      draw_batch_size: Python `int`, draws at a time.
      steps: Python `int`, the number of batches of a dataset; None for all.

    Returns:
      interval: Arrays `[2, n, ...]`, the lower and the upper ends, in units of
        the target and in the structure of the model's outputs; None for an
        output of classes or without a loss.

    Raises:
      ValueError: If `level` is out of range or `kind` none of these, and as
        for `quantiles`.

    #### Examples

    >>> model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
    >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
    ...     model, [tf.ones([5, 1, 1]), tf.zeros([5, 1])])
    >>> lower, upper = posterior.interval(tf.ones([1, 1]), 0.9)
    >>> lower[0].round(3), upper[0].round(3)
    (array([-0.645], dtype=float32), array([2.645], dtype=float32))
    """
    checks.level(level)
    if kind == 'equal_tails':
      return self.quantiles(
          x, [(1. - level) / 2., (1. + level) / 2.], batch_size,
          draw_batch_size, steps)
    if kind != 'shortest':
      raise ValueError(
          f"kind is {kind!r}: it has to be 'equal_tails' or 'shortest'.")
    return mixtures.shortest_interval(
        self._over(x, batch_size, draw_batch_size, steps), level)

  def evaluate(
      self,
      x: hints.Data,
      y: hints.Data = None,
      batch_size: int = 128,
      sample_weight: hints.Nested = None,
      draw_batch_size: int = 8,
      steps: int | None = None,
  ) -> dict[str, float]:
    """Scores of the predictive distribution.

      nll   = - mean_i log 1/S sum_s p(y_i | x_i, theta_s)
      brier = mean_i sum_k (p_ik - [y_i = k])^2
      ece   = sum over 15 bins of share of examples |accuracy - confidence|
      coverage_90 = share of targets between the quantiles 0.05 and 0.95
      interval_score_90, crps: as in `diagnostics`

    p(y_i | ...) is of all targets of an example: the log likelihoods of several
    labels or outputs are summed, where Keras' loss has a mean over labels and
    `loss_weights` over outputs.

    It also returns the compiled metrics. These receive the mean of the
    predictive distribution: for classes the mean probabilities (their
    logarithms, if the model returns logits), for the package's likelihoods the
    distribution's mean, otherwise, or where TFP has no such mean, the mean of
    the outputs. Metrics also receive the outputs' masks.

    If the targets are probabilities t_ik of classes (soft labels, for
    categorical and binary crossentropies), they replace [y_i = k] in `brier`,
    and in `ece` the indicator that the predicted class is right. `nll`, `brier`
    and `ece` leave out elements under an output's mask, with a loss's
    `ignore_class`; `brier` and `ece` also leave out those with a weight of 0.

    Args:
      x: Inputs; or a `tf.data.Dataset`, `keras.utils.PyDataset` or generator of
        batches `(x, y)` or `(x, y, sample_weight)`.
      y: Targets.
      batch_size: Python `int`, examples at a time.
      sample_weight: None, or weights `[n]` of the examples, for `nll` and
        weighted metrics; or weights `[n, t]` of elements; or weights for each
        output. As in `fit`, `nll` multiplies the log likelihoods by them.
      draw_batch_size: Python `int`, draws at a time.
      steps: Python `int`, the number of batches of a dataset; None for all.

    Returns:
      scores: Dict of floats: the compiled metrics, and `nll` in nats an
        example. For classes also `brier` and `ece`. For continuous targets
        whose distribution has a cdf in TFP also `coverage_90`, and, in units of
        the targets, `interval_score_90` and `crps` (by 1,000 samples of each
        target). With several outputs each of these but `nll` starts with the
        output's name and `_`.

    Raises:
      ValueError: As for `predict`; or if there are no targets, or two kinds of
        them, class numbers out of range, a weight that is negative, NaN or
        infinite, or no weight above 0.
    """
    return scores.evaluate(
        self._chosen, x, y, batch_size, sample_weight, draw_batch_size, steps)

  def calibrated(
      self, x: hints.Data, y: hints.Data, batch_size: int = 128,
  ) -> 'calibrated_lib.CalibratedPosterior':
    """Predictions calibrated on held-out data, and intervals with a guarantee.

    Temperature scaling calibrates class probabilities. Split conformal
    intervals and sets contain a new target with the requested probability, for
    any model. See `CalibratedPosterior`.

    Args:
      x: Inputs, arrays, of data that were not trained on.
      y: Their targets.
      batch_size: Python `int`, examples at a time.

    Returns:
      calibrated: `CalibratedPosterior`, with `predict`, `interval`, `sets` and
        `evaluate`.

    Raises:
      ValueError: If the model has not one output with a loss that is a
        distribution, the targets do not fit, and as for `predict`.

    #### Examples

    If a model has noise 0.1, and the data have noise 1, the calibrated interval
    is longer:

    >>> model = keras.Sequential([
    ...     keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=0.1))
    >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
    ...     model, [tf.ones([2, 1, 1])])
    >>> x = tf.random.stateless_uniform([4000, 1], [0, 1])
    >>> y = x + tf.random.stateless_normal([4000, 1], [0, 2])
    >>> calibrated = posterior.calibrated(x[:2000], y[:2000])
    >>> found = calibrated.evaluate(x[2000:], y[2000:], level=0.9)
    >>> posterior.evaluate(x[2000:], y[2000:])['coverage_90'] < 0.2
    True
    >>> abs(found['coverage'] - 0.9) < 0.05
    True
    """
    return calibrated_lib.CalibratedPosterior(
        self, x, y, batch_size=batch_size)

  def log_likelihood(
      self,
      x: hints.Data,
      y: hints.Data,
      batch_size: int = 128,
      draw_batch_size: int = 8,
  ) -> np.ndarray:
    """log p(y_i | x_i, theta_s), of each draw and example.

    Args:
      x: Inputs, arrays in the model's structure.
      y: Targets.
      batch_size: Python `int`, examples at a time.
      draw_batch_size: Python `int`, draws at a time.

    Returns:
      log_likelihood: Array `[draws, n]`, in nats.

    Raises:
      ValueError: As for `predict`; or if class numbers are out of range, or the
        log likelihood is NaN, as where targets are.
    """
    return scores.log_likelihood(
        self._chosen, x, y, batch_size, draw_batch_size)

  def thin(
      self,
      num_draws: int,
      x: hints.Data = None,
      batch_size: int = 128,
      draw_batch_size: int = 8,
      steps: int | None = None,
  ) -> 'PosteriorSamples':
    """Some of the draws, which predict nearly as all draws do.

    With inputs, draws are chosen one after another. Each choice brings the
    predictions for these inputs as close as possible to those of all draws.
    Compared are the mean of the predictive distribution and a second quantity:
    for densities its variance, for classes the mean of the draws' entropies.
    The distance is the sum of squares over examples, each quantity in units of
    its spread over draws.

    Without inputs the draws are evenly spaced in the order of the chains.

    Args:
      num_draws: Python `int`, how many to keep.
      x: None, or inputs, as for `predict`: some hundreds, like those of later
        predictions. The results for each draw and example are held in memory.
      batch_size: Python `int`, examples at a time.
      draw_batch_size: Python `int`, draws at a time.
      steps: Python `int`, the number of batches of a dataset; None for all.

    Returns:
      samples: `PosteriorSamples`, in the order of the chains. Weighted draws
        keep their weights.

    Raises:
      ValueError: If there are fewer draws, and as for `predict`.

    #### Examples

    Six draws, three with slope 0 and three with slope 1; `thin` keeps one of
    each:

    >>> model = keras.Sequential([
    ...     keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
    >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
    ...     model, [tf.reshape([0., 0., 0., 1., 1., 1.], [6, 1, 1])])
    >>> x = tf.constant([[1.], [2.]])
    >>> some = posterior.thin(2, x)
    >>> len(some), some.predict(x)[:, 0], posterior.predict(x)[:, 0]
    (2, array([0.5, 1. ], dtype=float32), array([0.5, 1. ], dtype=float32))
    """
    number = checks.positive_integer('num_draws', num_draws)
    if number > len(self):
      raise ValueError(
          f'num_draws is {number}, and there are {len(self)} draws: pass that '
          'or less.')
    if x is None:
      chosen = thinning.evenly_spaced(len(self), number)
    else:
      chosen = thinning.by_predictions(
          self._over(x, batch_size, draw_batch_size, steps), number)
    every = self._chosen.indices
    return self._of(self._chosen.some([every[k] for k in chosen]))

  def as_model(
      self,
      num_draws: int | None = None,
      *,
      outputs: Sequence[str] | None = None,
      quantiles: Sequence[float] = (0.05, 0.5, 0.95),
      dtype: str | None = None,
      input_signature: Any = None,
  ) -> keras.Model:
    """One `keras.Model` that holds the draws, to serve or to export.

    It takes the model's inputs and returns a dictionary of tensors `[n, ...]`:

      mean                of the predictive distribution, as `predict`
      std                 its standard deviation, as `predict(return_std=True)`
      quantiles           on a new last axis, as `quantiles`
      entropy             of classes, as `uncertainty(x).total`
      mutual_information  of classes, as `uncertainty(x).epistemic`

    If the model has several outputs, each name starts with the output's name
    and `_`. Keras' `export` writes the model as SavedModel, ONNX or LiteRT, for
    processes without this library and without Keras.

    The model holds copies of all draws' weights, and one copy of the frozen
    weights. The layers before the first sampled layer are computed once for all
    draws. So if only the last layers are sampled, the model costs little more
    than one network.

    Args:
      num_draws: Python `int`, how many draws, evenly spaced; None for all.
        `thin(num_draws, x).as_model()` chooses them by their predictions.
      outputs: Some of these names; None for all available: `mean` always, `std`
        and `quantiles` for densities, `entropy` and `mutual_information` for
        classes.
      quantiles: The probabilities of the quantiles, above 0 and below 1.
      dtype: The type in which the draws are stored, such as 'float16'; None for
        that of the model's weights. The model computes in the type of the
        weights.
      input_signature: For subclassed models, which do not declare their inputs:
        a `keras.InputSpec` with dtype, or a `tf.TensorSpec`, in the structure
        of the inputs.

    Returns:
      model: `keras.Model` with no trainable weights.

    Raises:
      ValueError: If there are no draws, the model is not compiled, no output
        has a requested quantity, or a draw is out of the range of `dtype`.

    #### Examples

    >>> model = keras.Sequential([
    ...     keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
    >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
    ...     model, [tf.constant([[[0.]], [[2.]]])])
    >>> served = posterior.as_model(outputs=['mean', 'std'])
    >>> found = served(tf.constant([[0.], [3.]]))
    >>> found['mean'][:, 0].numpy(), found['std'][:, 0].numpy().round(3)
    (array([0., 3.], dtype=float32), array([1.   , 3.162], dtype=float32))
    """
    if num_draws is not None:
      return self.thin(num_draws).as_model(
          outputs=outputs, quantiles=quantiles, dtype=dtype,
          input_signature=input_signature)
    return serving.serving_model(
        self._chosen, outputs, quantiles, dtype, input_signature)

  def distill(
      self,
      student: keras.Model,
      x: hints.Data,
      *,
      loss: keras.losses.Loss | None = None,
      optimizer: Any = 'adam',
      num_samples: int = 10,
      **fit_arguments: Any,
  ) -> keras.callbacks.History:
    """Trains one network to predict as the mixture of all draws does.

    The student q minimises E[-log q(y | x)], with y drawn from the mixture over
    the draws. For classes the labels are the mixture's probabilities; with a
    `GaussianLikelihood` the student learns the mixture's mean and variance. The
    inputs need no targets, so they can include perturbed inputs. Far from all
    inputs the student's predictions need not be those of the mixture.

    If the student has a second output, of non-negative numbers, it learns the
    epistemic part, by squared error. For classes this is the mutual
    information, in nats, `[n, 1]`; for numbers the standard deviation of the
    draws' means, in the shape of the targets, and in units of the `unit` of the
    student's loss. If the draws hardly disagree, the second output needs a
    hidden layer of its own: shared layers learn for the first output.

    Args:
      student: `keras.Model` whose output is that of the model's loss, or of
        `loss`; or that returns a list of this output and the second one. It is
        compiled with that loss, and trained from its current weights.
      x: Inputs, arrays in the model's structure.
      loss: The student's loss, such as `GaussianLikelihood()` where the model's
        has a fixed scale; None for that of the model.
      optimizer: As for `student.compile`.
      num_samples: Python `int`, samples of each target, if its distribution is
        neither normal nor one of classes.
      **fit_arguments: Arguments of `student.fit`, such as `epochs`.

    Returns:
      history: What `student.fit` returns.

    Raises:
      ValueError: If the model has several outputs, the outputs or the loss of
        the student do not fit, and as for `predict`.
      TypeError: If the student is no `keras.Model`, or x no arrays.

    #### Examples

    The draws have slopes 0 and 2 and noise of standard deviation 1:

    >>> model = keras.Sequential([
    ...     keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    >>> model.compile('sgd', sgmcmc.keras.GaussianLikelihood(scale=1.))
    >>> posterior = sgmcmc.keras.PosteriorSamples.from_arrays(
    ...     model, [tf.constant([[[0.]], [[2.]]])])
    >>> student = keras.Sequential([
    ...     keras.Input([1]), keras.layers.Dense(2, use_bias=False)])
    >>> history = posterior.distill(
    ...     student, np.ones([2000, 1]), optimizer=keras.optimizers.Adam(0.02),
    ...     loss=sgmcmc.keras.GaussianLikelihood(), epochs=15, verbose=0)
    >>> law = student.loss.distribution(student(np.ones([1, 1])))
    >>> bool(abs(law.mean() - 1.) < 0.1), bool(abs(law.variance() - 2.) < 0.2)
    (True, True)
    """
    number = checks.positive_integer('num_samples', num_samples)
    return distillation.distill(
        self, student, x, loss=loss, optimizer=optimizer,
        sample=lambda: mixtures.independent_samples(
            self._over(x, 128, 8, None), number),
        fit_arguments=fit_arguments)

  def to_arviz(
      self,
      x: hints.Data = None,
      y: hints.Data = None,
      batch_size: int = 128,
  ) -> Any:
    """Exports the draws by chain, all at once, to ArviZ.

    If chains differ in length, the last draws of each are taken, as many as the
    shortest chain has. Weighted draws are exported at equal weights, by
    `resampled()`.

    Args:
      x: None, or inputs, arrays in the model's structure, for predictions.
      y: None, or their targets, for the log likelihood (`arviz.loo`).
      batch_size: Python `int`, examples at a time.

    Returns:
      inference_data: `arviz.InferenceData`. `posterior` holds the weights,
        named by their paths with dots in place of slashes, and with x each
        draw's `predictions`, as of `predict`. With x and y `log_likelihood`
        holds that of each example, `y`. `sample_stats` holds each draw's step.
        All have leading axes of chains and draws.

    Raises:
      ImportError: If ArviZ is not installed.
      ValueError: If there are no draws, or targets without inputs.
    """
    return exports.to_arviz(self.resampled().chains, x, y, batch_size)

  def _of(self, chosen):
    """`PosteriorSamples` of others of the model's draws."""
    if chosen is self._chosen:
      return self
    samples = PosteriorSamples(chosen.model, chosen.draws)
    samples._chosen = chosen
    return samples

  def _over(self, x, batch_size, draw_batch_size, steps):
    """One pass over inputs."""
    return pass_lib.over_inputs(
        self._chosen, x, batch_size, draw_batch_size, steps)


def _unpickle(cls, model, arrays, start=None):
  return cls(model, draws_lib.in_memory(model, arrays, start))
