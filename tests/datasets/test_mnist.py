"""Tests of MNIST: TensorFlow Datasets' folder, whole and small."""

import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf

from experiments.datasets import small_mnist
from tfp_sgmcmc import datasets

_TRAIN, _TEST = 60, 20


@pytest.fixture(scope='module')
def tfds():
  pytest.importorskip('importlib_resources')
  return pytest.importorskip('tensorflow_datasets')


def _images(n, seed):
  rng = np.random.default_rng(seed)
  images = rng.integers(0, 256, [n, 28, 28], np.uint8)
  images[:, :5] = 0
  return images, (np.arange(n) * 7 % 10).astype(np.int64)


@pytest.fixture(scope='module')
def prepared(tfds, tmp_path_factory):
  """MNIST as TensorFlow Datasets prepares it: TFRecords of PNGs, and JSON."""
  folder = tmp_path_factory.mktemp('prepared')
  features = tfds.features.FeaturesDict({
      'image': tfds.features.Image(shape=(28, 28, 1)),
      'label': tfds.features.ClassLabel(num_classes=10)})
  splits = []
  for split, n in (('train', _TRAIN), ('test', _TEST)):
    path = folder / f'mnist-{split}.tfrecord-00000-of-00001'
    num_bytes = 0
    with tf.io.TFRecordWriter(str(path)) as writer:
      for image, label in zip(*_images(n, len(split))):
        record = features.serialize_example(
            {'image': image[..., np.newaxis], 'label': label})
        num_bytes += len(record)
        writer.write(record)
    splits.append(tfds.core.SplitInfo(
        name=split, shard_lengths=[n], num_bytes=num_bytes,
        filename_template=tfds.core.ShardedFileTemplate(
            dataset_name='mnist', data_dir=str(folder), split=split,
            filetype_suffix='tfrecord')))
  tfds.folder_dataset.write_metadata(
      data_dir=str(folder), features=features, split_infos=splits)
  return folder


def _copy(prepared, folder):
  """A copy of it where TensorFlow Datasets keeps it in a folder."""
  return shutil.copytree(prepared, folder / 'mnist' / '3.0.1')


@pytest.mark.parametrize('place', ['tfds', '.'])
def test_prepared_folder(prepared, tmp_path, place):
  _copy(prepared, tmp_path / place)
  train, test = datasets.load_mnist(tmp_path, num_rows=(_TRAIN, _TEST))
  for part, split, n in ((train, 'train', _TRAIN), (test, 'test', _TEST)):
    images, labels = _images(n, len(split))
    np.testing.assert_array_equal(part.images, images)
    np.testing.assert_array_equal(part.labels, labels)
    assert part.images.dtype == np.uint8 and part.labels.dtype == np.int32


def test_truncated(prepared, tmp_path):
  path = _copy(prepared, tmp_path) / 'mnist-train.tfrecord-00000-of-00001'
  content = path.read_bytes()
  path.write_bytes(content[:len(content) // 2])
  with pytest.raises(ValueError, match='MNIST.*truncated'):
    datasets.load_mnist(tmp_path, num_rows=(_TRAIN, _TEST))


def test_truncated_between_records(prepared, tmp_path):
  path = _copy(prepared, tmp_path) / 'mnist-test.tfrecord-00000-of-00001'
  records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
  with tf.io.TFRecordWriter(str(path)) as writer:
    for record in records[:-3]:
      writer.write(record)
  with pytest.raises(ValueError, match='contained only 17'):
    datasets.load_mnist(tmp_path, num_rows=(_TRAIN, _TEST))


def test_broken_metadata(prepared, tmp_path):
  folder = _copy(prepared, tmp_path)
  text = (folder / 'dataset_info.json').read_text()
  (folder / 'dataset_info.json').write_text(text[:-30])
  with pytest.raises(ValueError, match='cannot be read as MNIST prepared'):
    datasets.load_mnist(tmp_path, num_rows=(_TRAIN, _TEST))


def test_counts(prepared, tmp_path):
  _copy(prepared, tmp_path)
  with pytest.raises(ValueError, match='60 train images, and 60,000 are'):
    datasets.load_mnist(tmp_path)


def test_absent(tfds, tmp_path):
  with pytest.raises(FileNotFoundError, match='looked for mnist'):
    datasets.load_mnist(tmp_path)
  (tmp_path / 'mnist').mkdir()
  with pytest.raises(FileNotFoundError, match='dataset_info.json'):
    datasets.load_mnist(tmp_path)


def test_no_network(tfds, tmp_path, monkeypatch):
  def fails(self, **kwargs):
    raise OSError('Failed to resolve storage.googleapis.com')

  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', fails)
  with pytest.raises(ConnectionError, match='Failed to resolve.*data_dir=DATA'):
    datasets.load_mnist()


@pytest.mark.parametrize(
    'module', ['tensorflow_datasets', 'importlib_resources'])
def test_missing_package_names_the_extra(module, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(ImportError, match=r'pip install .tfp_sgmcmc\[datasets\]'):
    datasets.load_mnist(tmp_path)


def _labelled(n, seed):
  images, labels = _images(n, seed)
  return datasets.Mnist(images, labels.astype(np.int32))


def test_shrink():
  full, full_test = _labelled(100, 0), _labelled(50, 1)
  # Pixel (6, 6) of 7 x 7 is inked in the test part alone.
  full.images[:, 26, 26] = 0
  train, test = small_mnist.shrink_mnist(full, full_test, (3, 8), num_train=11)
  assert train.features.shape[0] == 11 and test.features.shape[0] == 10
  # Rows 0 to 4 of 28 are empty, so row 0 (2 of 28) of 7 x 7 is, too.
  np.testing.assert_array_equal(train.pixels, np.arange(7, 48))
  np.testing.assert_array_equal(test.pixels, train.pixels)
  chosen = np.flatnonzero(np.isin(full.labels, (3, 8)))[:11]
  for row, image in zip(train.features, full.images[chosen]):
    for value, pixel in zip(row, train.pixels):
      i, j = divmod(int(pixel), 7)
      assert value == np.float32(image[4 * i + 2, 4 * j + 2]) / 255.
  np.testing.assert_array_equal(
      np.array([3, 8])[train.labels], full.labels[chosen])
  assert train.features.dtype == np.float32


def test_shrink_refuses_too_many():
  with pytest.raises(ValueError, match='num_train is 21, and there are 20'):
    small_mnist.shrink_mnist(
        _labelled(100, 0), _labelled(50, 1), (3, 8), num_train=21)


@pytest.mark.slow
def test_real(real_data):
  pytest.importorskip('tensorflow_datasets')
  train, test = datasets.load_mnist(real_data)
  np.testing.assert_array_equal(
      np.bincount(train.labels),
      [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
  np.testing.assert_array_equal(
      np.bincount(test.labels),
      [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
  # The mean and standard deviation that everybody uses.
  assert abs(train.images.mean() / 255. - 0.1307) < 1e-4
  assert abs(train.images.std() / 255. - 0.3081) < 1e-4
  small, small_test = small_mnist.shrink_mnist(train, test)
  assert small.features.shape == (8_340, 42)
  assert small_test.features.shape == (980 + 1135 + 1032 + 1010, 42)
  assert np.all(small.features.max(axis=0) > 0.)
