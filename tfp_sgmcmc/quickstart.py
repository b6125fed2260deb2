"""The main job: the posterior of a small Keras network on handwritten digits.

  python -m tfp_sgmcmc.quickstart --output .

A network 64-100-10 is trained with Adam by `model.fit`, and sampled by the same
`model.fit`, for as many epochs, with one callback: `PosteriorSampling()`, which
chooses all settings, at three temperatures. T = 1 is the posterior's own; T = 0
averages predictions along a path of descent with momentum; and one is chosen by
a tenth of the training images, that are left out of training for it. It prints
how good the predictions of each are, on test images as they are and on images
unlike those it was trained on (turned, noisy), and writes a picture,
`quickstart.png`.
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
from tfp_sgmcmc.internal import hints

__all__ = ['main']

_SIDE = 8
_NUM_CLASSES = 10
_NUM_BINS = 10
_NUM_IMAGES = 10
_CHOSEN = 'T chosen'
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
      np.tile(np.array(transform, np.float32), [len(features), 1]),
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
      jit_compile=False)  # XLA would take longer to compile than this to run.
  return model


def fit(
    name: str,
    digits: sgmcmc.datasets.Digits,
    arguments: argparse.Namespace,
    sampling: sgmcmc.keras.PosteriorSampling | None = None,
    num_validation: int = 0,
) -> keras.Model:
  """Fits a new network, by Adam or with a callback that samples.

  Args:
    name: What the progress bar says.
    digits: The training images.
    arguments: The command line's.
    sampling: The callback; None for Adam alone.
    num_validation: The number of images that are for validation.

  Returns:
    model: The network, with its history of the losses, `model.history`.
  """
  import tqdm.keras  # Of the extra `quickstart`: `main` says so.
  keras.utils.set_random_seed(arguments.seed)
  model = make_model(arguments.num_units)
  x, y = to_features(digits.images), digits.labels
  order = np.random.default_rng(arguments.seed).permutation(len(y))
  validation, train = np.split(order, [num_validation])
  dataset = tf.data.Dataset.from_tensor_slices((x[train], y[train])).cache(
      ).shuffle(len(train), seed=arguments.seed).batch(
          arguments.batch_size, drop_remainder=True)
  bar = tqdm.keras.TqdmCallback(verbose=0, desc=name, dynamic_ncols=True)
  model.fit(
      dataset, epochs=arguments.epochs, verbose=0, shuffle=False,
      callbacks=[bar] if sampling is None else [sampling, bar],
      validation_data=(
          (x[validation], y[validation]) if num_validation else None))
  return model


def fit_all(
    digits: sgmcmc.datasets.Digits, arguments: argparse.Namespace,
) -> tuple[dict[str, Any], list[float]]:
  """Adam, and the posterior at three temperatures.

  Args:
    digits: The training images.
    arguments: The command line's.

  Returns:
    predictors: By name, what has a method `predict`: a model or the draws.
    loss: The mean training loss of each epoch where T is chosen.
  """
  print('First by Adam, as usual.')
  predictors = {'Adam': fit('Adam', digits, arguments)}
  print(
      'Then three times with PosteriorSampling: a fifth of the epochs by Adam, '
      'the others\ndraw networks from the posterior, and predictions are '
      'averages over these.')
  for name, temperature in (
      (_CHOSEN, 'validation'), ('T = 0', 0.), ('T = 1', 1.)):
    is_chosen = temperature == 'validation'
    sampling = sgmcmc.keras.PosteriorSampling(
        temperature=temperature, seed=arguments.seed)
    model = fit(
        name, digits, arguments, sampling,
        len(digits.labels) // 10 if is_chosen else 0)
    predictors[name] = sampling.posterior
    print(f'  {name}: {len(sampling.posterior)} networks drawn, step size '
          f'{sampling.settings["step_size"]:g}')
    if is_chosen:
      loss = model.history.history['loss']
      print('  temperatures tried on images left out, by NLL: ' + ', '.join(
          f'{t:g} ({nll:.3f})'
          for t, nll in sampling.validation_scores.items())
            + f'; chosen: {sampling.settings["temperature"]:g}')
  return predictors, loss


def predict_all(
    predictors: dict[str, Any], inputs: dict[str, np.ndarray],
) -> dict[str, dict[str, np.ndarray]]:
  """Class probabilities by each method, of each kind of images."""
  return {
      method: {kind: np.asarray(
          predictor.predict(x) if isinstance(
              predictor, sgmcmc.keras.PosteriorSamples)
          else predictor.predict(x, verbose=0)) for kind, x in inputs.items()}
      for method, predictor in predictors.items()}


def print_table(
    probabilities: dict[str, dict[str, np.ndarray]], labels: np.ndarray,
) -> dict[str, dict[str, float]]:
  """Prints the scores; returns the NLL of each method on each kind."""
  nll = {
      method: {kind: float(_SCORES['NLL'](p, labels))
               for kind, p in by_kind.items()}
      for method, by_kind in probabilities.items()}
  usual, *shifts = nll['Adam']
  heads = [
      f'{head:>5}' for head in [*_SCORES, *(f'NLL {kind}' for kind in shifts)]]
  print(f'\n{f"{len(labels)} test images":<18}' + ' '.join(heads))
  for method, by_kind in probabilities.items():
    scores = [float(score(by_kind[usual], labels))
              for score in _SCORES.values()]
    scores += [nll[method][kind] for kind in shifts]
    print(f'{method:<18}' + ' '.join(
        f'{value:>{len(head)}.{3 if len(head) < 9 else 2}f}'
        for head, value in zip(heads, scores)))
  return nll


def draw(
    path: pathlib.Path,
    probabilities: dict[str, dict[str, np.ndarray]],
    nll: dict[str, dict[str, float]],
    test: sgmcmc.datasets.Digits,
    loss: hints.TensorLike,
) -> None:
  """Draws calibration, scores by shift, the chain and the hardest images."""
  from matplotlib import figure

  from tfp_sgmcmc.diagnostics import plots

  picture = figure.Figure(figsize=(11., 7.2), layout='constrained')
  top, bottom = np.asarray(
      picture.subfigures(2, 1, height_ratios=[1.45, 1.]))
  left, middle, right = top.subplots(1, 3, width_ratios=[1., 1.15, 1.15])
  kind = 'as they are'
  plots.reliability(left, {
      method: sgmcmc.diagnostics.reliability_curve(
          probabilities[method][kind], test.labels, _NUM_BINS)
      for method in ('Adam', _CHOSEN)})
  left.set_title(f'Reliability, test images {kind}', fontsize=11)
  positions = np.arange(len(nll['Adam']))
  for k, (method, by_kind) in enumerate(nll.items()):
    middle.barh(
        positions + 0.2 * k, list(by_kind.values()), height=0.19, label=method)
  middle.set_yticks(positions + 0.3, list(nll['Adam']), fontsize=9)
  middle.invert_yaxis()
  middle.set_xlabel('nats an image, less is better')
  middle.set_title('Negative log likelihood', fontsize=11)
  middle.legend(edgecolor='none')
  right.plot(loss, linewidth=0.8)
  right.set(xlabel='epoch', ylabel='mean training loss', yscale='log')
  right.set_title('Adam, search, draws (T chosen)', fontsize=11)

  average = probabilities[_CHOSEN]['as they are']
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
  picture.savefig(path, dpi=144)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
      prog='python -m tfp_sgmcmc.quickstart', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
      '--output', type=pathlib.Path, default=pathlib.Path('.'),
      help='folder of quickstart.png (default: this one)')
  for name, default in (
      ('num_units', 100), ('batch_size', 100), ('epochs', 100),
      ('seed', 1)):
    parser.add_argument(
        f'--{name}', type=int, default=default, help=f'default: {default}')
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
  train, test = sgmcmc.datasets.load_digits()
  print(f'A network of 64, {arguments.num_units} and 10 units learns '
        f'{len(train.labels)} images of digits, {arguments.epochs} epochs.')
  predictors, loss = fit_all(train, arguments)
  inputs = shifted(to_features(test.images), arguments.seed)
  probabilities = predict_all(predictors, inputs)
  nll = print_table(probabilities, test.labels)
  arguments.output.mkdir(parents=True, exist_ok=True)
  path = arguments.output / 'quickstart.png'
  draw(path, probabilities, nll, test, loss)
  print(
      '\nNLL, the negative log likelihood, is how surprised a method is by the '
      'right digit:\nless is better. ECE is how far its probabilities are from '
      'how often it is right.\n'
      f'The picture: {path.resolve()} ({time.monotonic() - begin:.0f} s in all)'
      '\nNext, in the repository: tutorials/1_keras.ipynb, and '
      'docs/choosing.md for data and models of your own.')
  return 0


if __name__ == '__main__':
  sys.exit(main())
