"""What the tests of the loaders share."""

import functools
import os
import pathlib

import pytest

from experiments.datasets import files


@pytest.fixture(scope='session')
def real_data():
  """The folder with the real data, where there is one."""
  folder = os.environ.get('TFP_SGMCMC_DATA')
  if not folder:
    pytest.skip('TFP_SGMCMC_DATA names no folder with the real data')
  return pathlib.Path(folder)


@pytest.fixture
def publisher(tmp_path, monkeypatch):
  """A folder that stands for the publisher's site, and its address.

  Downloads go to a folder of the test.
  """
  monkeypatch.setattr(files.keras.utils, 'get_file', functools.partial(
      files.keras.utils.get_file, cache_dir=str(tmp_path / 'cache')))
  (tmp_path / 'cache').mkdir()
  site = tmp_path / 'site'
  site.mkdir()
  return site, site.as_uri() + '/'


@pytest.fixture
def no_network():
  """An address where nobody answers."""
  return 'http://127.0.0.1:9/'
