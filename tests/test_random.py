"""The generator: known answers, distribution, independence, sameness.

Each statistical test has a p-value threshold of 1e-6.
"""

import functools
import itertools
import math

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfp_sgmcmc import random
from tfp_sgmcmc.internal import compat

FALSE_ALARM_RATE = 1e-6
SEED = [11, 12]


def words(values):
  return tuple(tf.constant(value, tf.uint32) for value in values)


@pytest.mark.parametrize('key, counter, expected', [
    # Salmon et al.'s known-answer vectors of threefry2x32-20.
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3),
     (0xC4923A9C, 0x483DF7A0)),
])
def test_threefry_known_answers(key, counter, expected):
  result = random.threefry_2x32(words(key), words(counter))
  assert tuple(int(word) for word in result) == expected


def test_seeds_are_mixed_as_splitmix64_does():
  """The first outputs of SplitMix64 from the state 0, as published."""
  spread = tf.cast(tf.range(1, 4), tf.uint64) * tf.constant(
      0x9E3779B97F4A7C15, tf.uint64)
  mixed = random._mix(spread)
  assert [hex(word) for word in mixed.numpy().tolist()] == [
      '0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4', '0x6c45d188009454f']
  for k, word in enumerate(mixed):
    np.testing.assert_array_equal(
        random.fold_in([0, 0], k), tf.bitcast(random._mix(word), tf.int32))


PARTS = (
    tf.zeros([3]), tf.zeros([100, 51]), tf.zeros([7], tf.float64),
    tf.zeros([5000]), tf.zeros([11, 11], tf.bfloat16))


def some_draws(seed):
  return {
      'bits': random.bits([50], seed),
      'uniform': random.uniform([2, 25], seed),
      'normal': random.normal([50], seed),
      # Larger than a literal: rows of an even length.
      'normal rows': random.normal([3, 41, 50], seed),
      'indices': random.indices(1013, [50], seed),
      'replaced': random.indices(1000, [50], seed, replacement=True),
      'folded': random.fold_in(seed, 5),
  }


def all_draws(seed):
  return {
      **some_draws(seed),
      'uniform64': random.uniform([50], seed, tf.float64),
      'normal64': random.normal([5, 10], seed, tf.float64),
      'normal rows64': random.normal([50, 100], seed, tf.float64),
      # Larger than a literal: of an odd length; long.
      'normal odd': random.normal([500, 11], seed),
      'normal long': random.normal([2, 5000], seed),
      'half': random.uniform([50], seed, tf.bfloat16),
      'stream': random.normal([50], seed, stream=3),
      'chains': random.indices(1_000_000, [3, 50], seed),
      'strata': random.indices_of_strata([90, 1013, 3], [2, 20, 3], [4], seed),
      **{f'normal part {k}': part for k, part in enumerate(
          random.normal_like(PARTS, seed))},
  }


@functools.cache
def eager_draws(draws):
  return draws(tf.constant(SEED))


@pytest.mark.parametrize('draws, jit_compile', [
    pytest.param(some_draws, True, marks=pytest.mark.slow),
    pytest.param(
        all_draws, False, marks=[pytest.mark.slow, pytest.mark.weekly]), *(
        pytest.param(
            all_draws, how, marks=[pytest.mark.slow, pytest.mark.weekly])
        for how in (True, 'no compiler'))])
def test_same_eager_graph_and_xla(draws, jit_compile, monkeypatch):
  if jit_compile == 'no compiler':
    monkeypatch.setattr(compat, 'jit_compile', lambda: None)
    jit_compile = False
  compiled = tf.function(draws, jit_compile=jit_compile)(tf.constant(SEED))
  monkeypatch.undo()
  for name, value in eager_draws(draws).items():
    assert value.shape == compiled[name].shape
    # Words, uniforms and indices exactly; normals up to rounding.
    exact = not name.startswith(('normal', 'stream'))
    np.testing.assert_allclose(
        tf.cast(value, tf.float64), tf.cast(compiled[name], tf.float64),
        rtol=0. if exact else 8. * np.finfo(np.float32).eps, err_msg=name)


def test_static_shape_in_a_graph_and_dynamic_shapes():
  @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
  def dynamic(shape):
    return random.normal(shape, SEED)

  @tf.function
  def static():
    z = random.normal([3, 4], SEED)
    assert z.shape == [3, 4]
    return z

  np.testing.assert_allclose(dynamic([3, 4]), static(), rtol=1e-6)
  assert random.normal([], SEED).shape == []
  assert random.normal([0], SEED).shape == [0]


def test_parts_are_pieces_of_one_vector():
  """None of their numbers is another's; also of shapes not yet known."""
  @tf.function(input_signature=[
      tf.TensorSpec([None] * len(part.shape), part.dtype) for part in PARTS])
  def dynamic(*parts):
    return random.normal_like(parts, SEED)

  whole = random.normal([11_000], SEED).numpy()
  place = 0
  for part, other in zip(random.normal_like(PARTS, SEED), dynamic(*PARTS)):
    flat = tf.reshape(tf.cast(part, tf.float32), [-1]).numpy()
    np.testing.assert_array_equal(flat, tf.reshape(
        tf.cast(other, tf.float32), [-1]))
    np.testing.assert_allclose(  # Up to half precision.
        flat, whole[place:place + len(flat)], rtol=1e-2, atol=1e-3)
    place += -(-len(flat) // 16) * 16


def test_too_many_normals():
  parts = [tf.TensorSpec([2**30]), tf.TensorSpec([2**15, 2**15])]
  with pytest.raises(ValueError, match='2,147,483,648 numbers.*fewer chains'):
    random.normal_like(parts, SEED)


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_uniform_distribution(dtype):
  u = random.uniform([1_000_000], SEED, dtype).numpy()
  assert 0. <= u.min() and u.max() < 1.
  assert scipy.stats.kstest(u, 'uniform').pvalue > FALSE_ALARM_RATE


@pytest.mark.slow
@pytest.mark.weekly_after(1)
@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_normal_distribution(dtype):
  num = 10_000_000
  z = random.normal([num], SEED, dtype).numpy().astype(np.float64)
  assert np.all(np.isfinite(z))
  assert scipy.stats.kstest(z[:1_000_000], 'norm').pvalue > FALSE_ALARM_RATE
  bound = scipy.stats.norm.isf(FALSE_ALARM_RATE / 2.)
  for power, mean, variance in (
      (1, 0., 1.), (2, 1., 2.), (3, 0., 15.), (4, 3., 96.)):
    error = np.mean(z**power) - mean
    assert abs(error) < bound * math.sqrt(variance / num), power
  for tail in (3., 4., 4.5, 5.):
    for sign in (-1, 1):
      count = np.sum(sign * z > tail)
      expected = num * scipy.stats.norm.sf(tail)
      assert scipy.stats.poisson.sf(count - 1, expected) > FALSE_ALARM_RATE
      assert scipy.stats.poisson.cdf(count, expected) > FALSE_ALARM_RATE


def test_normals_are_quantiles_of_both_words():
  key = tf.unstack(tf.constant(SEED, tf.uint32))
  counter = tf.range(5_000)
  pairs = random.threefry_2x32(
      key, (tf.bitcast(counter, tf.uint32), tf.constant(3, tf.uint32)))
  k = np.stack(pairs, axis=-1).reshape([-1])[:9_999] >> 8
  np.testing.assert_allclose(
      random.normal([9_999], SEED, stream=3),
      scipy.stats.norm.ppf((k + 0.5) / 2**24), rtol=4e-7)


def test_quantile_over_all_cells():
  k = np.concatenate([  # The ends one by one, and each 37th between.
      np.arange(2**16), np.arange(2**16, 2**24 - 2**16, 37),
      np.arange(2**24 - 2**16, 2**24)])
  z = tf.function(random._quantile, jit_compile=True)(
      tf.constant(k * 256, tf.uint32)).numpy()
  np.testing.assert_allclose(
      z, scipy.stats.norm.ppf((k + 0.5) / 2**24), rtol=4e-7)
  assert np.all(np.diff(z) >= 0.)


def test_float64_refines_float32():
  np.testing.assert_allclose(
      random.normal([10_000], SEED),
      random.normal([10_000], SEED, tf.float64), atol=2e-2, rtol=2e-2)


def correlation_is_noise(x, y):
  z = np.corrcoef(x, y)[0, 1] * math.sqrt(len(x))
  return 2. * scipy.stats.norm.sf(abs(z)) > FALSE_ALARM_RATE


def test_no_correlation_across_counters_keys_streams_and_chains():
  z = random.normal([1_000_000], SEED).numpy()
  for lag in (1, 2, 3, 7, 20, 100, 1024):
    assert correlation_is_noise(z[:-lag], z[lag:]), lag
    assert correlation_is_noise(z[:-lag]**2, z[lag:]**2), lag
  others = {
      'key 0': random.normal([1_000_000], [12, 12]),
      'key 1': random.normal([1_000_000], [11, 13]),
      'swapped key': random.normal([1_000_000], [12, 11]),
      'stream': random.normal([1_000_000], SEED, stream=1),
      'fold': random.normal([1_000_000], random.fold_in(SEED, 0)),
      'other fold': random.normal([1_000_000], random.fold_in(SEED, 1)),
  }
  for name, other in others.items():
    assert correlation_is_noise(z, other.numpy()), name
    assert correlation_is_noise(z**2, other.numpy()**2), name


def test_bits_are_fair_and_keys_avalanche():
  num = 200_000
  one = random.bits([num], SEED).numpy()
  ones = ((one[:, np.newaxis] >> np.arange(32, dtype=np.uint32)) & 1).mean(0)
  bound = scipy.stats.norm.isf(FALSE_ALARM_RATE / 64.) / math.sqrt(num) / 2.
  assert np.abs(ones - 0.5).max() < bound
  for bit in (0, 1, 15, 30):
    flipped = one ^ random.bits([num], [SEED[0] ^ (1 << bit), SEED[1]]).numpy()
    share = ((flipped[:, np.newaxis] >> np.arange(32, dtype=np.uint32)) & 1)
    assert np.abs(share.mean(0) - 0.5).max() < bound, bit


def first_words(fold):
  """Threefry's first word of each of many seeds, uniform on (0, 1)."""
  seeds = tf.bitcast(
      tf.function(lambda: compat.vectorized_map(
          fold, tf.range(200_000, dtype=tf.int64)))(), tf.uint32)
  assert len(np.unique(seeds.numpy().view(np.uint64))) == 200_000
  zero = tf.zeros([], tf.uint32)
  word, _ = random.threefry_2x32((seeds[:, 0], seeds[:, 1]), (zero, zero))
  return (word.numpy() + 0.5) * 2.**-32


def are_independent(one, other):
  """Whether two streams are, at the same step and at the next."""
  return all(correlation_is_noise(x, y) for x, y in (
      (one, other), (one[:-1], other[1:]), (one[1:], other[:-1])))


def test_first_words_of_folded_seeds_are_independent_and_uniform():
  """Over steps, uses within a step, chains, and seeds close to each other."""
  step = tf.constant(SEED)
  of = {
      'step': lambda k: random.fold_in(step, k),
      'use 0 of a step': lambda k: random.fold_in(random.fold_in(step, k), 0),
      'use 1 of a step': lambda k: random.fold_in(random.fold_in(step, k), 1),
      'step of chain 0': lambda k: random.fold_in(random.fold_in(step, 0), k),
      'step of chain 1': lambda k: random.fold_in(random.fold_in(step, 1), k),
      'next seed': lambda k: random.fold_in(step + [0, 1], k),
      'swapped': lambda k: random.fold_in(step[::-1], k)}
  words = {name: first_words(fold) for name, fold in of.items()}
  for name, u in words.items():
    assert scipy.stats.kstest(u, 'uniform').pvalue > FALSE_ALARM_RATE, name
    for lag in (1, 2, 7):
      assert correlation_is_noise(u[:-lag], u[lag:]), (name, lag)
  for one, other in itertools.combinations(words, 2):
    assert are_independent(words[one], words[other]), (one, other)
  # Planted: what one use has at a step, another has at the next.
  assert not are_independent(
      words['step'], first_words(lambda k: random.fold_in(step, k + 1)))


def test_folding_in_another_order_gives_another_seed():
  one, other = (
      random.fold_in(random.fold_in(SEED, a), b) for a, b in ((0, 1), (1, 0)))
  assert not np.array_equal(one, other)


@pytest.fixture(name='eagerly')
def _eagerly():
  """Each number of examples is a program, which takes long to compile."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize('num_examples', [
    1, 2, 3, 4, 5, 7, 13, 64, 100, 1009, 65_536, 99_991])
@pytest.mark.usefixtures('eagerly')
def test_permutation(num_examples):
  """All the indices, each once: so the map is one to one."""
  indices = random.indices(num_examples, [2, num_examples], SEED).numpy()
  for row in indices:
    np.testing.assert_array_equal(np.sort(row), np.arange(num_examples))


@pytest.mark.parametrize('num_examples', [10**6, 2**30 - 35, 2**30])
def test_distinct_and_in_range_for_large_data(num_examples):
  indices = random.indices(num_examples, [20_000], SEED).numpy()
  assert indices.min() >= 0 and indices.max() < num_examples
  assert len(set(indices.tolist())) == len(indices)


@pytest.mark.parametrize('num_examples, size', [
    (3, 2), (64, 2), *(
        pytest.param(*numbers, marks=pytest.mark.slow)
        for numbers in ((5, 3), (10, 3), (23, 3))), *(
            pytest.param(*numbers, marks=[pytest.mark.slow, pytest.mark.weekly])
            for numbers in ((4, 2), (5, 2), (6, 3), (17, 2)))])
@pytest.mark.usefixtures('eagerly')
def test_every_subset_is_equally_likely(num_examples, size):
  num = 1_000_000
  indices = np.sort(random.indices(num_examples, [num, size], SEED), axis=1)
  codes = indices @ num_examples**np.arange(size)
  num_subsets = math.comb(num_examples, size)
  counts = np.unique(codes, return_counts=True)[1]
  counts = np.append(counts, np.zeros(num_subsets - len(counts)))
  assert scipy.stats.chisquare(counts).pvalue > FALSE_ALARM_RATE


def draw_orders(num_examples, num):
  """So many orders, alone and as those of a stratum, each in rows."""
  return (
      random.indices(num_examples, [num, num_examples], SEED).numpy(),
      random.indices_of_strata(
          [7, num_examples], [0, num_examples], [num], SEED).numpy())


@pytest.mark.parametrize('num_examples', [
    2, 3, 4, 5, *(
        pytest.param(number, marks=pytest.mark.slow) for number in (6, 7))])
@pytest.mark.usefixtures('eagerly')
def test_every_order_is_equally_likely(num_examples):
  num_orders = math.factorial(num_examples)
  for orders in draw_orders(num_examples, 10 * max(1000, num_orders)):
    codes = orders @ num_examples**np.arange(num_examples)
    counts = np.unique(codes, return_counts=True)[1]
    counts = np.append(counts, np.zeros(num_orders - len(counts)))
    assert scipy.stats.chisquare(counts).pvalue > FALSE_ALARM_RATE


@pytest.mark.parametrize('num_examples', [9, 10, 15])
@pytest.mark.usefixtures('eagerly')
def test_half_of_the_orders_are_odd(num_examples):
  """On 3 by 3 numbers a network of rounds alone makes even orders only."""
  num = 2000
  for orders in draw_orders(num_examples, num):
    signs = np.linalg.det(np.eye(num_examples)[orders])
    num_odd = int(np.sum(signs < 0.))
    assert scipy.stats.binomtest(num_odd, num).pvalue > FALSE_ALARM_RATE


@pytest.mark.weekly_after(3)
@pytest.mark.parametrize('replacement', [False, True])
@pytest.mark.parametrize('sizes, numbers', [
    ((2, 5, 3, 1), (1, 2, 2, 1)), *(
        pytest.param(*numbers, marks=pytest.mark.slow)
        for numbers in (((6, 6), (2, 2)), ((3, 10, 3), (1, 2, 1))))])
def test_subsets_of_all_strata_are_equally_likely(sizes, numbers, replacement):
  """So each stratum's are, independently of those of the others."""
  num = 500_000
  indices = random.indices_of_strata(
      sizes, numbers, [num], SEED, replacement).numpy()
  codes, num_outcomes = np.zeros(num, int), 1
  for size, own in zip(sizes, np.split(
      indices, np.cumsum(numbers)[:-1], axis=1)):
    count = own.shape[1]
    if not replacement:
      own = np.sort(own, axis=1)
    codes = codes * size**count + own @ size**np.arange(count)
    num_outcomes *= size**count if replacement else math.comb(size, count)
  counts = np.unique(codes, return_counts=True)[1]
  counts = np.append(counts, np.zeros(num_outcomes - len(counts)))
  assert scipy.stats.chisquare(counts).pvalue > FALSE_ALARM_RATE


@pytest.mark.slow
def test_strata_of_all_sizes_are_permuted():
  sizes = [1, 2, 3, 4, 5, 64, 1009, 7]
  indices = random.indices_of_strata(sizes, sizes, [3], SEED).numpy()
  for own, size in zip(np.split(indices, np.cumsum(sizes)[:-1], axis=1), sizes):
    for row in np.sort(own, axis=1):
      np.testing.assert_array_equal(row, np.arange(size))
  large = random.indices_of_strata([2**30, 10**6], [5_000] * 2, [2], SEED)
  for own, size in zip(np.split(large.numpy(), 2, axis=1), (2**30, 10**6)):
    assert own.min() >= 0 and own.max() < size
    assert all(len(set(row)) == 5_000 for row in own.tolist())


@pytest.mark.weekly
@pytest.mark.slow
def test_pairs_of_many_examples_are_equally_likely():
  num_examples, counts = 211, 0.
  for seed in range(4):
    pair = random.indices(num_examples, [2_000_000, 2], [seed, 9]).numpy()
    counts = counts + np.bincount(
        pair[:, 0] * num_examples + pair[:, 1], minlength=num_examples**2)
  counts = counts.reshape([num_examples, num_examples])
  assert np.all(np.diag(counts) == 0.)
  off_diagonal = counts[~np.eye(num_examples, dtype=bool)]
  assert scipy.stats.chisquare(off_diagonal).pvalue > FALSE_ALARM_RATE


@pytest.mark.parametrize('replacement', [False, True])
def test_examples_are_equally_likely(replacement):
  num_examples, size, num = 1000, 20, 200_000
  indices = random.indices(
      num_examples, [num, size], SEED, replacement=replacement).numpy()
  counts = np.bincount(indices.ravel(), minlength=num_examples)
  expected = num * size / num_examples
  scale = 1. if replacement else (
      (1. - size / num_examples) * num_examples / (num_examples - 1.))
  statistic = np.sum((counts - expected)**2) / expected / scale
  p_value = scipy.stats.chi2.sf(statistic, num_examples - 1)
  assert FALSE_ALARM_RATE < p_value < 1. - FALSE_ALARM_RATE


def test_too_many_examples():
  with pytest.raises(ValueError, match='2\\^30'):
    random.indices(2**30 + 1, [5], SEED)


@pytest.mark.parametrize('arguments, error, message', [
    ((5, [6]), ValueError, '6 distinct indices .* 5 examples.*replacement'),
    ((5, [3, 6]), ValueError, '6 distinct indices'),
    ((5, []), ValueError, r'shape is \[\]: it needs an axis'),
    ((-1, [2]), ValueError, 'num_examples is -1: .* at least 1'),
    ((0, [2], True), ValueError, 'num_examples is 0: .* at least 1'),
    ((5., [2]), TypeError, 'num_examples is 5.0: .* integer'),
])
def test_impossible_indices(arguments, error, message):
  num_examples, shape, *rest = arguments
  with pytest.raises(error, match=message):
    random.indices(num_examples, shape, SEED, *rest)


@pytest.mark.parametrize('arguments, error, message', [
    (dict(sizes=[5, 0], numbers=[2, 1]), ValueError, 'stratum 1.* 0 examples'),
    (dict(sizes=[5, 2**30 + 1], numbers=[2, 1]), ValueError, '1 to 2\\^30'),
    (dict(sizes=[5, 3], numbers=[2, 4]), ValueError,
     '4 indices .* stratum 1, which has 3 examples'),
    (dict(sizes=[5, 3], numbers=[2, -1]), ValueError, '-1 indices'),
    (dict(sizes=[5, 3], numbers=[2]), ValueError, 'an entry for each stratum'),
    (dict(sizes=[], numbers=[]), TypeError, 'sizes'),
    (dict(sizes=[5.5, 3.], numbers=[2, 1]), TypeError, 'Python integers'),
    (dict(sizes=[5, 3], numbers=[2, 1], replacement=1), TypeError,
     'replacement'),
])
def test_impossible_indices_of_strata(arguments, error, message):
  with pytest.raises(error, match=message):
    random.indices_of_strata(chains=[], seed=SEED, **arguments)


@pytest.mark.parametrize('draw', [
    random.bits, random.uniform, random.normal,
    lambda shape, seed: random.indices(5, shape, seed),
    lambda shape, seed: random.indices(5, shape, seed, replacement=True),
    lambda shape, seed: random.indices_of_strata([5], [2], shape, seed)])
@pytest.mark.parametrize('shape, error, message', [
    ([-1, 2], ValueError, r'shape is \[-1, 2\]: .* negative'),
    ([2**16, 2**15, 1], ValueError, r'2,147,483,648 numbers'),
    ([2.5], TypeError, r'shape is \[2.5\]'),
    ('a', TypeError, "shape is 'a'")])
def test_impossible_shapes(draw, shape, error, message):
  with pytest.raises(error, match=message):
    draw(shape, SEED)


def test_impossible_indices_in_a_graph():
  @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
  def graph(num_chains):  # Only the last axis is known.
    return random.indices(5, [num_chains, 6], SEED)

  with pytest.raises(ValueError, match='6 distinct indices'):
    graph(3)


@pytest.mark.parametrize('draw', [
    lambda: random.normal([3], SEED, tf.int32),
    lambda: random.uniform([3], SEED, tf.int64),
    lambda: random.normal_like([tf.zeros([3], tf.int32)], SEED)])
def test_floats_of_an_integer_dtype(draw):
  with pytest.raises(TypeError, match='dtype is int.*float.*`indices`'):
    draw()
