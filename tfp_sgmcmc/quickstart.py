"""The main job: the posterior of a small Keras network on handwritten digits.

  python -m tfp_sgmcmc.quickstart --output .

A network 64-100-10 is trained with Adam by `model.fit`, and then sampled by the
same `model.fit` with one callback, `tfp_sgmcmc.keras.PosteriorSampling`: SGHMC
on minibatches, a Gaussian prior. It prints how good the predictions of both
are, on test images as they are and on images unlike those it was trained on
(turned, noisy), and writes a picture, `quickstart.png`.
"""

import argparse
from collections.abc import Sequence
import math
import pathlib
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfp_sgmcmc as sgmcmc

__all__ = ['main']

_SIDE = 8
_NUM_CLASSES = 10
_NUM_BINS = 10
_NUM_IMAGES = 10
_SCORES = {
    'accuracy': sgmcmc.diagnostics.accuracy,
    'NLL': sgmcmc.diagnostics.negative_log_likelihood,
    'ECE': lambda p, y: sgmcmc.diagnostics.expected_calibration_error(
        p, y, _NUM_BINS),
}


def to_features(images: np.ndarray) -> np.ndarray:
  """Images `[n, 8, 8]` of 0 to 16 as rows of 64 numbers from 0 to 1."""
  return np.reshape(images, [-1, _SIDE**2]).astype(np.float32) / 16.


def turn(features: np.ndarray, degrees: float) -> np.ndarray:
  """Square images, rows `[n, side^2]`, turned about their centre."""
  side = math.isqrt(features.shape[1])
  angle, centre = np.deg2rad(degrees), (side - 1) / 2.
  cosine, sine = np.cos(angle), np.sin(angle)
  transform = [
      cosine, -sine, centre * (1. - cosine + sine),
      sine, cosine, centre * (1. - sine - cosine), 0., 0.]
  images = keras.ops.image.affine_transform(
      features.reshape([-1, side, side, 1]),
      np.tile(np.float32(transform), [len(features), 1]),
      interpolation='bilinear', data_format='channels_last')
  return np.reshape(images, features.shape)


def add_noise(features: np.ndarray, scale: float, seed: int) -> np.ndarray:
  """The images with Gaussian noise, cut to the range of pixels."""
  noise = sgmcmc.random.normal(features.shape, [1, seed])
  return np.clip(features + scale * noise.numpy(), 0., 1.)


def shifted(features: np.ndarray, seed: int) -> dict[str, np.ndarray]:
  """The test images, as they are and unlike the training images."""
  return {
      'as they are': features,
      'turned by 20 degrees': turn(features, 20.),
      'turned by 40 degrees': turn(features, 40.),
      'noise of 0.25': add_noise(features, 0.25, seed),
      'noise of 0.5': add_noise(features, 0.5, seed),
  }


def make_model(num_units: int) -> keras.Model:
  """A perceptron with one hidden layer, compiled with Adam."""
  model = keras.Sequential([
      keras.Input([_SIDE**2]),
      keras.layers.Dense(num_units, activation='relu'),
      keras.layers.Dense(_NUM_CLASSES, activation='softmax')])
  model.compile(
      'adam', 'sparse_categorical_crossentropy', metrics=['accuracy'],
      jit_compile=True)
  return model


def epoch_bar(name: str) -> keras.callbacks.Callback:
  """A bar over the epochs of one `fit`, each of which takes milliseconds."""
  import tqdm.keras  # Of the extra `quickstart`: `main` says so.
  return tqdm.keras.TqdmCallback(verbose=0, desc=name, dynamic_ncols=True)


def train_and_sample(
    model: keras.Model,
    digits: sgmcmc.datasets.Digits,
    arguments: argparse.Namespace,
) -> tuple[list[np.ndarray], keras.callbacks.History,
           sgmcmc.keras.PosteriorSamples]:
  """Fits with Adam, then samples from where Adam has come to.

  Args:
    model: Compiled model.
    digits: The training images.
    arguments: The command line's.

  Returns:
    weights: Adam's, as NumPy arrays.
    history: What `fit` returned while sampling.
    posterior: The draws.
  """
  num_examples = len(digits.labels)
  dataset = tf.data.Dataset.from_tensor_slices(
      (to_features(digits.images), digits.labels)).cache().shuffle(
          num_examples, seed=arguments.seed).batch(
              arguments.batch_size, drop_remainder=True)
  model.fit(
      dataset, epochs=arguments.adam_epochs, verbose=0, shuffle=False,
      callbacks=[epoch_bar('Adam')])
  weights = model.get_weights()

  steps_per_epoch = num_examples // arguments.batch_size
  sampling = sgmcmc.keras.PosteriorSampling(
      sgmcmc.SGHMC, num_examples=num_examples,
      prior=sgmcmc.keras.he_normal(arguments.prior_scale),
      learning_rate=arguments.learning_rate, momentum=arguments.momentum,
      num_burnin_steps=arguments.burnin_epochs * steps_per_epoch,
      num_steps_between_results=(
          arguments.epochs_between_results * steps_per_epoch - 1),
      seed=arguments.seed)
  history = model.fit(
      dataset, epochs=arguments.epochs, verbose=0, shuffle=False,
      callbacks=[sampling, epoch_bar('SGHMC')])
  return weights, history, sampling.posterior


def predict_all(
    model: keras.Model,
    weights: Sequence[np.ndarray],
    posterior: sgmcmc.keras.PosteriorSamples,
    inputs: dict[str, np.ndarray],
) -> dict[str, dict[str, np.ndarray]]:
  """Class probabilities by Adam's weights and by the posterior's average."""
  average = {name: posterior.predict(x) for name, x in inputs.items()}
  model.set_weights(weights)
  return {
      'Adam': {
          name: model.predict(x, verbose=0) for name, x in inputs.items()},
      'posterior': average,
  }


def print_table(
    probabilities: dict[str, dict[str, np.ndarray]], labels: np.ndarray,
) -> dict[str, dict[str, list[float]]]:
  """Prints the scores on each kind of images; returns them."""
  scores = {
      method: {
          kind: [float(score(p, labels)) for score in _SCORES.values()]
          for kind, p in by_kind.items()}
      for method, by_kind in probabilities.items()}
  heads = [f'{m} {name}' for name in _SCORES for m in ('Adam', 'post.')]
  print(f'\n{f"{len(labels)} test images":<22}'
        + ''.join(f'{head:>15}' for head in heads))
  for kind in scores['Adam']:
    pairs = zip(scores['Adam'][kind], scores['posterior'][kind])
    print(f'{kind:<22}' + ''.join(f'{a:>15.4f}{b:>15.4f}' for a, b in pairs))
  return scores


def draw(
    path: pathlib.Path,
    probabilities: dict[str, dict[str, np.ndarray]],
    scores: dict[str, dict[str, list[float]]],
    test: sgmcmc.datasets.Digits,
    loss: Any,
) -> None:
  """Draws calibration, scores by shift, the chain and the hardest images."""
  from matplotlib import figure

  from tfp_sgmcmc.diagnostics import plots

  picture = figure.Figure(figsize=(11., 7.2), layout='constrained')
  top, bottom = picture.subfigures(2, 1, height_ratios=[1.45, 1.])
  left, middle, right = top.subplots(1, 3, width_ratios=[1., 1.15, 1.15])
  kind = 'as they are'
  plots.reliability(left, {
      method: sgmcmc.diagnostics.reliability_curve(
          p[kind], test.labels, _NUM_BINS)
      for method, p in probabilities.items()})
  left.set_title(f'Reliability, test images {kind}', fontsize=11)
  positions = np.arange(len(scores['Adam']))
  for k, (method, by_kind) in enumerate(scores.items()):
    middle.barh(
        positions + 0.4 * k, [s[1] for s in by_kind.values()], height=0.38,
        label=method)
  middle.set_yticks(positions + 0.2, list(scores['Adam']), fontsize=9)
  middle.invert_yaxis()
  middle.set_xlabel('nats an image, less is better')
  middle.set_title('Negative log likelihood', fontsize=11)
  middle.legend(edgecolor='none')
  right.plot(loss, linewidth=0.8)
  right.set(xlabel='epoch of sampling', ylabel='mean training loss')
  right.set_title('The chain, started from Adam', fontsize=11)

  average = probabilities['posterior']['as they are']
  adam = probabilities['Adam']['as they are']
  bottom.suptitle(
      'The test images the posterior is least sure of: its probabilities '
      "(blue: the right digit) and Adam's (dots)", fontsize=11)
  grid = bottom.subplots(2, _NUM_IMAGES, height_ratios=[1.5, 1.])
  for k, index in enumerate(np.argsort(average.max(axis=1))[:_NUM_IMAGES]):
    image, chart = grid[:, k]
    image.imshow(test.images[index], cmap='gray_r', vmin=0, vmax=16)
    image.set_title(f'a {test.labels[index]}', fontsize=9)
    image.set_anchor('S')
    image.set_axis_off()
    classes = np.argsort(average[index])[::-1][:3]
    chart.bar(range(3), average[index][classes], color=[
        'C0' if c == test.labels[index] else '0.78' for c in classes])
    chart.plot(range(3), adam[index][classes], 'k.', markersize=4)
    chart.set(xticks=range(3), yticks=[0., 0.5, 1.], ylim=(0., 1.05))
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
      ('num_units', 100), ('batch_size', 100), ('adam_epochs', 100),
      ('epochs', 500), ('burnin_epochs', 100), ('epochs_between_results', 5),
      ('seed', 1)):
    parser.add_argument(
        f'--{name}', type=int, default=default, help=f'default: {default}')
  for name, default in (
      ('prior_scale', 4.), ('learning_rate', 0.02), ('momentum', 0.98)):
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
  keras.utils.set_random_seed(arguments.seed)
  train, test = sgmcmc.datasets.load_digits()
  model = make_model(arguments.num_units)
  print(f'A network 64-{arguments.num_units}-10 on {len(train.labels)} images '
        f'of digits: {model.count_params():,} weights')
  weights, history, posterior = train_and_sample(model, train, arguments)
  kept = history.history['kinetic_temperature'][arguments.burnin_epochs:]
  print(f'{len(posterior)} draws; kinetic temperature {np.mean(kept):.3f} '
        '(1 is exact; the noise of minibatches heats)')
  inputs = shifted(to_features(test.images), arguments.seed)
  probabilities = predict_all(model, weights, posterior, inputs)
  scores = print_table(probabilities, test.labels)
  arguments.output.mkdir(parents=True, exist_ok=True)
  path = arguments.output / 'quickstart.png'
  draw(path, probabilities, scores, test, history.history['loss'])
  print(f'\n{path} written, {time.monotonic() - begin:.0f} s in all')
  return 0


if __name__ == '__main__':
  sys.exit(main())
