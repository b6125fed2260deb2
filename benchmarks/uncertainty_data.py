"""Four kinds of real data, each with a network of its own and E epochs:

  digits     8 x 8 pixels; 64-100-10, the quickstart's; 100 epochs
  covertype  20,000 rows of a table; 54-128-128-2; 40 epochs
  kos        blog entries, 1,000 words there or not; Keras' perceptron for the
             Reuters newswire, 512 units and dropout 0.5; 20 epochs. KOS has no
             labels: the class is which of the words Iraq, poll, Senate, House
             and campaign an entry uses most, and they are taken out of it.
  mnist      10,000 images; Keras' convnet for MNIST, dropout 0.5; 25 epochs

What is not like the training data: noise and turned images; noise and missing
quantities of a table; words left out of a text. And what is of no class, or no
place, that was trained on, to be told by the entropy of the prediction (AUROC):
the digit 9; the wilderness area Cache la Poudre, whose cells have labels too;
entries with `media` most. The seed draws the rows too, but for the digits and
MNIST's test images, which are given.
"""

from collections.abc import Callable
from collections.abc import Sequence
import pathlib
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from experiments import datasets
import tfp_sgmcmc as sgmcmc
from tfp_sgmcmc import quickstart

USUAL, NUM_SHIFTED = 'as they are', 2000
TOPICS = ('iraq', 'poll', 'senate', 'house', 'campaign', 'media')
Arrays = tuple[np.ndarray, np.ndarray]


class Task(NamedTuple):
  """Data and a network.

  Attributes:
    epochs: E.
    make_layers: Callable of a dropout rate, zero for none, of a network that
      has no dropout of its own.
    has_dropout: Whether it has dropout of its own.
    train: Inputs and labels.
    tests: By name; the first is like the training data.
    others: Inputs of no class, or no place, that was trained on.
  """
  epochs: int
  make_layers: Callable[[float], list[keras.Layer]]
  has_dropout: bool
  train: Arrays
  tests: dict[str, Arrays]
  others: np.ndarray


def perceptron(sizes: Sequence[int]) -> Callable[[float], list[keras.Layer]]:
  """Layers of these sizes, with dropout at a rate after hidden ones."""
  def make_layers(rate):
    layers = []
    for size in sizes[:-1]:
      layers += [keras.layers.Dense(size, 'relu'), keras.layers.Dropout(rate)]
    return [*layers, keras.layers.Dense(sizes[-1], 'softmax')]
  return make_layers


def convnet(rate: float) -> list[keras.Layer]:
  """That of keras.io/examples/vision/mnist_convnet."""
  del rate
  return [
      keras.layers.Reshape([28, 28, 1]),
      keras.layers.Conv2D(32, 3, activation='relu'),
      keras.layers.MaxPooling2D(2),
      keras.layers.Conv2D(64, 3, activation='relu'),
      keras.layers.MaxPooling2D(2), keras.layers.Flatten(),
      keras.layers.Dropout(0.5), keras.layers.Dense(9, 'softmax')]


def images(train: Any, test: Any, scale: float, num_train: int | None,
           epochs: int, layers: Any, has_dropout: bool, seed: int) -> Task:
  """Images of digits; 9 is the class that is not trained on."""
  x, x_test = (
      (e.images.reshape([len(e.images), -1]) / scale).astype(np.float32)
      for e in (train, test))
  rows = np.random.default_rng(seed).permutation(
      np.flatnonzero(train.labels < 9))[:num_train]
  known = test.labels < 9
  usual, labels = x_test[known], test.labels[known]
  few, few_labels = usual[:NUM_SHIFTED], labels[:NUM_SHIFTED]
  tests = {USUAL: (usual, labels)}
  for degrees in (20., 40.):
    tests[f'turned by {degrees:.0f} degrees'] = (
        quickstart.turn(few, degrees), few_labels)
  for noise in (0.25, 0.5):
    tests[f'noise of {noise}'] = (
        quickstart.add_noise(few, noise, seed), few_labels)
  return Task(epochs, layers, has_dropout, (x[rows], train.labels[rows]),
              tests, x_test[~known][:NUM_SHIFTED])


def digits(data: pathlib.Path, seed: int) -> Task:
  del data
  train, test = sgmcmc.datasets.load_digits()
  return images(
      train, test, 16., None, 100, perceptron([100, 9]), False, seed)


def mnist(data: pathlib.Path, seed: int) -> Task:
  train, test = sgmcmc.datasets.load_mnist(data)
  return images(train, test, 255., 10_000, 25, convnet, True, seed)


def covertype(data: pathlib.Path, seed: int) -> Task:
  train, test = datasets.load_covertype(data, seed=(0, seed))
  place, ten = 13, slice(10)  # The column of the area, and the quantities'.
  known, there = ([e.features[:, place] == k for e in (train, test)]
                  for k in (0, 1))
  scale = datasets.Standardization.fit(
      train.features[known[0]][:20_000], columns=ten)
  x, y = scale(test.features[known[1]])[:15_000], test.labels[known[1]][:15_000]
  rng = np.random.default_rng(seed)
  noisy, missing = x.copy(), x.copy()
  noisy[:, ten] += 0.5 * rng.normal(size=[len(x), 10])
  missing[:, ten] *= rng.uniform(size=[len(x), 10]) > 0.3
  x_there = scale(test.features[there[1]])
  return Task(
      40, perceptron([128, 128, 2]), False,
      (scale(train.features[known[0]])[:20_000],
       train.labels[known[0]][:20_000]),
      {USUAL: (x, y), 'noise of 0.5': (noisy, y),
       'three of ten missing': (missing, y),
       'another area': (x_there, test.labels[there[1]])}, x_there)


def kos(data: pathlib.Path, seed: int) -> Task:
  bags = datasets.load_bag_of_words('kos', data, 0.25, (0, seed))
  topics = [bags[0].vocabulary.index(word) for word in TOPICS]
  counts = [bag.to_dense() for bag in bags]
  told = [word.startswith(TOPICS) for word in bags[0].vocabulary]
  words = np.argsort(np.where(told, 0., -np.sum(counts[0], axis=0)))[:1000]

  def examples(count):
    uses = count[:, topics]
    most = uses == uses.max(axis=1, keepdims=True)
    clear = most.sum(axis=1) == 1
    return np.float32(count[clear][:, words] > 0), most[clear].argmax(axis=1)

  parts = [examples(count) for count in counts]
  other = len(TOPICS) - 1
  (x, y), (x_test, y_test) = (
      (x[y < other], y[y < other]) for x, y in parts)
  rng = np.random.default_rng(seed)
  tests = {USUAL: (x_test, y_test)}
  for share in (0.5, 0.75):
    tests[f'{share:.0%} of the words left out'] = (
        x_test * np.float32(rng.uniform(size=x_test.shape) > share), y_test)
  return Task(
      20, lambda rate: [
          keras.layers.Dense(512, 'relu'), keras.layers.Dropout(0.5),
          keras.layers.Dense(other, 'softmax')],
      True, (x, y), tests, np.concatenate([x[y == other] for x, y in parts]))


def shrink(task: Task) -> Task:
  """The same, small enough for a test."""
  return task._replace(
      epochs=10, train=tuple(a[:300] for a in task.train),
      others=task.others[:50],
      tests={k: (x[:100], y[:100]) for k, (x, y) in task.tests.items()})


SETS = {'digits': digits, 'covertype': covertype, 'kos': kos, 'mnist': mnist}
