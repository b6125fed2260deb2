"""Which rows a step has, and when its program has to be made anew."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import models
from tfp_sgmcmc.keras.fitting import all_rows
from tfp_sgmcmc.keras.fitting import more_rows
from tfp_sgmcmc.keras.fitting import rows_and_steps
from tfp_sgmcmc.keras.model import products

CHAINS = dict(num_chains=1, more_rows=None, rows_of=lambda number: number)


def make(num_steps, num_more_rows='auto', num_batches=10):
  """Of 50 rows, and of as many steps for each batch."""
  return rows_and_steps.RowsAndSteps(
      models.classifier(), types.SimpleNamespace(
          num_more_rows=num_more_rows, num_steps_per_batch=num_steps,
          num_chains=1, examples=types.SimpleNamespace(number=50)),
      types.SimpleNamespace(
          steps_per_batch=num_steps, batches_to_come=num_batches,
          set_batches_in_epoch=lambda number: None))


def look(rows, batch_size):
  x, y = models.classes()
  rows.look(iter(tf.data.Dataset.from_tensor_slices(
      (x.astype(np.float32), y)).batch(batch_size)), batch_size)


def next_fit(rows, chains, batch_size):
  rows.begin_fit()
  look(rows, batch_size)
  return rows.take_rows(chains, has_steps=True)


def first_fit(rows, chains, batch_size):
  look(rows, batch_size)
  assert not rows.take_rows(chains, has_steps=False)
  return rows.take_steps(chains, is_resumed=False)


def test_a_later_fit_has_the_rows_for_its_batches():
  rows, chains = make(1), types.SimpleNamespace(**CHAINS)
  assert first_fit(rows, chains, 5)
  first = chains.more_rows
  assert first.number == 25 and rows.batch_size == 5
  assert not next_fit(rows, chains, 5)
  assert chains.more_rows is first
  # Of 50 rows these are so many that a step needs no others.
  assert next_fit(rows, chains, 20)
  assert chains.more_rows is None and rows.batch_size == 20
  assert not next_fit(rows, chains, 20)


def test_a_program_that_is_kept_does_not_go_on_drawing_rows():
  """Those of a chain before, which made several steps for each batch."""
  chains = types.SimpleNamespace(**CHAINS)
  assert first_fit(make(3), chains, 20)
  assert chains.more_rows.num_in_place == 25  # Half of all.
  assert not first_fit(make(3), chains, 20)
  assert first_fit(make(1), chains, 20)
  assert chains.more_rows is None


def test_a_model_is_traced_once(monkeypatch):
  """Whatever asks for its products: here the chains and the rows."""
  traced, a_row = [], products.a_row
  monkeypatch.setattr(
      products, 'a_row', lambda *given: traced.append(given) or a_row(*given))
  rows, chains = make(1), types.SimpleNamespace(**CHAINS)
  look(rows, 5)
  number = rows.num_chains(
      (tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64)),
      tf.constant([0, 1]))
  assert number in (1, 4) and len(traced) == 1
  rows.take_rows(chains, has_steps=False)
  assert len(traced) == 1


def test_no_data_are_looked_up_where_no_rows_are_wanted():
  rows = make(1, num_more_rows=0)
  look(rows, 20)
  assert not rows.needs_rows and not rows.needs_look
  assert rows.batch_size == 20 and rows._data is None


@pytest.mark.parametrize('batch_size, arguments, is_read', [
    (5, dict(num_steps=1), True),  # There are rows beside a batch.
    (20, dict(num_steps=1), False),
    (20, dict(num_steps=2), True),
    (20, dict(num_steps=None), True),  # A short fit makes several steps.
    (20, dict(num_steps=None, num_batches=10_000), False),
    (20, dict(num_steps=1, num_more_rows=7), True),
    (5, dict(num_steps=1, num_more_rows=0), False),
])
def test_a_pipeline_is_read_where_its_rows_would_be_drawn(
    monkeypatch, batch_size, arguments, is_read):
  read = []
  monkeypatch.setattr(all_rows, 'read', lambda *given: read.append(given))
  rows = make(**arguments)
  x, y = models.classes()
  data = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x, y))
  rows.look(iter(data.batch(batch_size)), batch_size)
  assert len(read) == is_read


def test_a_large_pipeline_is_not_read(monkeypatch):
  read = []
  monkeypatch.setattr(all_rows, 'read', lambda *given: read.append(given))
  monkeypatch.setattr(more_rows, '_MOST_NUMBERS_READ', 50 * 5 - 1)
  x, y = models.classes()
  data = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x, y))
  make(1).look(iter(data.batch(5)), 5)
  assert not read
