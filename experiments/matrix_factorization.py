"""Bayesian matrix factorization: Ding et al. (2014), Fig. 3, rows 2 and 3.

  rating = mean + u . v + noise,  u, v ~ N(0, s^2 I) of 10 factors

by SGHMC and SGNHT for a in {0.01, 0.1} and eta in {2, 4, 6, 8}e-7, with
minibatches of 400 (MovieLens 1M) and 40,000 (Netflix). The files are the
user's. Here: a synthetic set of low rank, whose noise is known; a small file in
the MovieLens format (or MovieLens 1M, where `--data` has it, and by `--full`);
and a synthetic stream of 100 million ratings, as many users and films as
Netflix', dealt to shards on disk and read by tf.data for a stated number of
steps. In the first two eta is larger in proportion, 2e-7 times 800,000 / N and
so on, so that eta N is the paper's. The spread of a figure is the standard
deviation over chains, which share their minibatches. The stream's shards are
written in one process and read in another; peak memory is that of each.
"""

from concurrent import futures
import multiprocessing
import pathlib
import resource
import tempfile

from matplotlib import figure
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from experiments import common
from experiments import datasets
from experiments import parts
from experiments import thermostats
import tfp_sgmcmc as sgmcmc

tfd = tfp.distributions

NUM_FACTORS, MEAN, SCALE = 10, 3.6, 0.5
ETAS, FRICTIONS = (2e-7, 4e-7, 6e-7, 8e-7), (0.01, 0.1)
SETTINGS = tuple((eta, a) for a in FRICTIONS for eta in ETAS)
METHODS, COLORS = ('SGHMC', 'SGNHT'), ('C1', 'C0')
PUBLISHED_SIZE, PUBLISHED_STEPS = 800_000, 100_000


def functions(mean, noise):
  """Log prior and log likelihood of the factors."""
  def log_prior(*factors):
    return sum(
        tf.reduce_sum(tfd.Normal(0., SCALE).log_prob(f), axis=[-2, -1])
        for f in factors)

  def log_likelihood(u, v, batch):
    product = tf.reduce_sum(
        tf.gather(u, batch.users, axis=-2)
        * tf.gather(v, batch.items, axis=-2), axis=-1)
    return tfd.Normal(mean + product, noise).log_prob(batch.ratings)

  return log_prior, log_likelihood


def kernel_of(name, posterior, eta, a, estimator):
  """In the units of the paper's algorithm 2: eta = h^2, a = A h."""
  h = tf.sqrt(eta)
  kernel = {'SGHMC': sgmcmc.SGHMC, 'SGNHT': sgmcmc.SGNHT}[name]
  return kernel(posterior, h, a / h, gradient_estimator=estimator)


def ratings(random, factors, size, noise):
  """A chunk of synthetic ratings, any user and film as likely as another."""
  users, items = (random.integers(len(f), size=size) for f in factors)
  values = MEAN + noise * random.standard_normal(size, np.float32)
  values += np.einsum('nk,nk->n', factors[0][users], factors[1][items])
  return datasets.Ratings(
      users.astype(np.int32), items.astype(np.int32),
      values.astype(np.float32))


def true_factors(random, num_users, num_items):
  return [SCALE * random.standard_normal([n, NUM_FACTORS], np.float32)
          for n in (num_users, num_items)]


def low_rank_set(arguments):
  """Train, test, numbers of users and films, and the noise."""
  users, films, count = common.sizes(
      arguments, (60, 40, 1500), (400, 250, 80_000), (6040, 3883, 1_000_000))
  random = np.random.default_rng(arguments.seed)
  data = ratings(random, true_factors(random, users, films), count, 0.5)
  cut = count * 4 // 5
  return (*(datasets.Ratings(*(x[part] for x in data))
            for part in (slice(cut), slice(cut, None))), (users, films), 0.5)


def movielens_set(arguments):
  """The user's file; else a small one written here in its format."""
  folder, num_rows = arguments.data, None
  with tempfile.TemporaryDirectory() as temporary:
    if arguments.size != 'full' and not (
        folder and (folder / 'movielens').exists()):
      num_rows = common.sizes(arguments, 1500, 20_000, None)
      random = np.random.default_rng(arguments.seed + 1)
      data = ratings(
          random, true_factors(random, *common.sizes(
              arguments, (60, 40), (250, 150), None)), num_rows, 0.8)
      folder = pathlib.Path(temporary)
      (folder / 'movielens').mkdir()
      stars = np.clip(np.rint(data.ratings), 1, 5).astype(int)
      (folder / 'movielens' / 'ratings.dat').write_text(''.join(
          f'{u + 1}::{i + 1}::{r}::978300760\n'
          for u, i, r in zip(data.users, data.items, stars)))
    data = datasets.load_movielens(folder, num_rows=num_rows)
  return (data.train, data.test, (len(data.user_ids), len(data.item_ids)), 0.85)


def grid(data, num_steps, arguments, use):
  """Test RMSE of the mean prediction so far: `[draws, settings, chains]`."""
  train, test, shape, noise = data
  num_chains = common.sizes(arguments, 2, 2, 3)
  num_draws = common.sizes(arguments, 5, 64, 100)
  thinning = num_steps * 4 // 5 // num_draws
  num_blocks = num_steps // thinning
  jit_compile = arguments.size != 'tiny'
  posterior = sgmcmc.Posterior(*functions(train.ratings.mean(), noise), train)
  scale = PUBLISHED_SIZE / len(train.users)

  def curve_of(name):
    eta, a = tf.unstack(tf.constant(SETTINGS)[
        ..., tf.newaxis, tf.newaxis, tf.newaxis], axis=1)
    kernel = kernel_of(
        name, posterior, eta * scale, a,
        sgmcmc.gradients.Uniform(400, share_minibatch=True))

    @tf.function(jit_compile=jit_compile, autograph=False)
    def advance(state, results, seed):
      return tf.while_loop(
          lambda step, *_: step < thinning,
          lambda step, state, results: (step + 1, *kernel.one_step(
              state, results, seed=sgmcmc.random.fold_in(seed, step))),
          (0, state, results))[1:]

    seed = common.seed_of(arguments, use + METHODS.index(name))
    state = [
        0.1 * sgmcmc.random.normal(
            [len(SETTINGS), num_chains, n, NUM_FACTORS],
            sgmcmc.random.fold_in(seed, k)) for k, n in enumerate(shape)]
    results = kernel.bootstrap_results(state, seed)
    total, curve = 0., []
    for block in range(num_blocks):
      state, results = advance(
          state, results, sgmcmc.random.fold_in(seed, 2 + block))
      parts.tell((block + 1) / num_blocks, arguments)
      if block < num_blocks - num_draws:
        continue
      u, v = (part.numpy() for part in state)
      total = total + np.einsum(
          '...k,...k->...', u[..., test.users, :], v[..., test.items, :])
      prediction = train.ratings.mean() + total / (len(curve) + 1.)
      curve.append(np.sqrt(np.mean((prediction - test.ratings)**2, axis=-1)))
    return np.nan_to_num(np.array(curve), nan=np.inf)

  curves = parts.each(
      curve_of, METHODS, arguments, f'samplers, data {use // 10 + 1}',
      share=0.35)
  return dict(zip(METHODS, curves)), test.ratings.std()


def peak_memory():
  """The peak memory of this process so far, in MB."""
  status = pathlib.Path('/proc/self/status')
  if status.exists():
    line = next(x for x in status.read_text().splitlines() if 'VmHWM' in x)
    return int(line.split()[1]) / 1024.
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.


def write_shards(folder, num_ratings, num_users, num_items, seed):
  """Deals synthetic ratings to shards; returns the peak of memory."""
  random = np.random.default_rng(seed)
  factors, chunk = true_factors(random, num_users, num_items), 500_000
  datasets.shard_ratings(
      (ratings(random, factors, min(chunk, num_ratings - start), 0.5)
       for start in range(0, num_ratings, chunk)),
      folder, num_shards=max(10, num_ratings // chunk))
  return peak_memory()


def sample_stream(folder, num_steps, batch_size, seed):
  """Samples from the shards, and measures."""
  before = peak_memory()
  shards = datasets.open_shards(folder)
  train, test = shards.split(0.2)
  held_out = next(iter(test.stream(batch_size)))
  posterior = sgmcmc.Posterior(
      *functions(MEAN, 0.5), num_examples=train.num_ratings)
  kernel = kernel_of(
      'SGNHT', posterior, ETAS[0], FRICTIONS[0],
      sgmcmc.gradients.Stream(
          train.stream(batch_size, seed=seed, infinite=True)))
  start = [
      0.1 * sgmcmc.random.normal([len(ids), NUM_FACTORS], [seed, k])
      for k, ids in enumerate((shards.user_ids, shards.item_ids))]
  draws = sgmcmc.sample(
      kernel, 1, start, num_burnin_steps=num_steps - 1, seed=seed,
      progress_bar=False)
  u, v = draws.final_state
  prediction = MEAN + tf.reduce_sum(
      tf.gather(u, held_out.users) * tf.gather(v, held_out.items), axis=-1)
  error = np.sqrt(np.mean((prediction - held_out.ratings)**2))
  read = common.num_gradients(draws.kernel_results)
  return dict(
      num_ratings=shards.num_ratings, ratings_read=read, num_steps=num_steps,
      rmse=float(error), constant_rmse=float(np.std(held_out.ratings)),
      before_mb=before, peak_mb=peak_memory(),
      ratings_mb=12 * shards.num_ratings / 2**20)


def stream(shape, num_steps, batch_size, arguments):
  """Writes the shards and samples, each in a process of its own."""
  def alone(function, *values):
    if arguments.size == 'tiny':  # A process takes longer to start than to run.
      return function(*values)
    with futures.ProcessPoolExecutor(
        1, multiprocessing.get_context('spawn')) as executor:
      return executor.submit(function, *values).result()

  with tempfile.TemporaryDirectory() as folder:
    writing = alone(write_shards, folder, *shape, arguments.seed)
    found = alone(
        sample_stream, folder, num_steps, batch_size, arguments.seed)
  return dict(found, writing_peak_mb=writing)


def run(arguments):
  sets = {'low rank': low_rank_set, 'MovieLens format': movielens_set}
  errors, deviations, settings = {}, {}, {}
  length = common.sizes(arguments, 50, 4000, PUBLISHED_STEPS)
  for k, (name, load) in enumerate(sets.items()):
    data = load(arguments)
    errors[name], deviations[name] = grid(data, length, arguments, 10 * k)
    settings[name] = dict(
        num_train=len(data[0].users), num_test=len(data[1].users),
        users_and_items=data[2], noise=data[3], num_steps=length,
        # Of the paper's ratings, or of its steps.
        share_of_the_papers=0. if name == 'low rank' else min(
            len(data[0].users) / PUBLISHED_SIZE, length / PUBLISHED_STEPS))
  users, films, batch_size, num_steps = common.sizes(
      arguments, (2000, 200, 100, 20), (480_189, 17_770, 40_000, 100),
      (480_189, 17_770, 40_000, 100_000))
  largest = common.sizes(arguments, 20_000, 100_000_000, 100_000_000)
  streams = parts.each(
      lambda count: stream(
          (count, users, films), num_steps, batch_size, arguments),
      (largest // 10, largest), arguments, 'streams', share=0.3)
  settings.update(
      etas=ETAS, frictions=FRICTIONS, num_factors=NUM_FACTORS,
      stream=dict(users=users, items=films, batch_size=batch_size,
                  sampler='SGNHT, a = 0.01, eta = 2e-7'))
  return report(errors, deviations, streams, settings)


def least_squares(data):
  """The test RMSE, in units of the noise, of a fit by least squares."""
  num_parameters = NUM_FACTORS * sum(data['users_and_items'])
  return np.sqrt(1. + num_parameters / data['num_train'])


def show(values):
  return ', '.join(f'{value:.4f}' for value in values)


def judged(settings, text, holds, detail, words):
  """A claim of the paper; and of ours, where the set or the run is not its.

  As on the other sets of the figure, a run shorter than a share of the paper's
  says nothing of what it claims; nor does another set of ratings.
  """
  is_papers = settings['share_of_the_papers'] >= thermostats.LEAST_SHARE
  own = common.Claim(f'SGHMC, {text}', holds, detail)
  detail += (
      f'; {settings["num_train"]:,} ratings, after {settings["num_steps"]:,} '
      f'of {PUBLISHED_STEPS:,} steps')
  quoted = common.Claim(
      text, holds if is_papers else None, detail, thermostats.PAPER(words))
  return [quoted] if is_papers else [quoted, own]


def worse_and_worse(data, by_eta, settings):
  before, after = by_eta[:-1], by_eta[1:]
  return judged(
      settings, f'on the {data} set, with a = 0.01: test RMSE rises from each '
      'eta to the next', bool(np.all((after > before) | np.isinf(after))),
      f'{show(by_eta)}, where inf is a chain that diverged',
      'In all four datasets, especially with the smaller a, SGHMC gets worse '
      'and worse results as η increases')


def diverges(data, found, deviation, settings):
  return judged(
      settings, f'on the {data} set, with a = 0.01 and eta = 8e-7: it predicts '
      'worse than the mean rating', bool(found['SGHMC'][3] > deviation),
      f'{found["SGHMC"][3]:.4f}; mean rating {deviation:.4f}; SGNHT '
      f'{found["SGNHT"][3]:.4f}',
      'With the largest η, SGHMC diverges (as the green curve is way beyond '
      'the range)')


def as_good(data, found):
  ratio = found['SGNHT'] / found['SGHMC']
  return common.Claim(
      f'On the {data} set SGNHT is at least as good as SGHMC at every eta and '
      'a, within 1%', bool(np.all(ratio < 1.01)),
      f'SGNHT over SGHMC {ratio.min():.3f} to {ratio.max():.3f}')


def tuned(data, found):
  best = {name: int(np.argmin(found[name])) for name in ('SGNHT', 'SGHMC')}
  values = {name: found[name][k] for name, k in best.items()}
  return common.Claim(
      f'On the {data} set, with eta and a tuned for each, SGNHT is at least as '
      'good as SGHMC, within 1%',
      bool(values['SGNHT'] < 1.01 * values['SGHMC']),
      ', '.join(
          f'{name} {values[name]:.4f} at eta = {SETTINGS[k][0]:g}, '
          f'a = {SETTINGS[k][1]:g}' for name, k in best.items())
      + f', the best of {len(SETTINGS)} settings by the same test RMSE')


def report(errors, deviations, streams, settings):
  published = {
      ('SGNHT', 0.01): 'stable', ('SGNHT', 0.1): 'stable',
      ('SGHMC', 0.01): 'worse as eta grows, diverges at 8e-7',
      ('SGHMC', 0.1): 'slower'}
  rows = []
  for data, by_method in errors.items():
    for k, (eta, a) in enumerate(SETTINGS):
      for name in METHODS:
        last = by_method[name][-1, k]
        spread = last.std() if np.all(np.isfinite(last)) else None
        rows.append([
            data, name, a, eta, last.mean(), spread, published[name, a]])
  for s in streams:
    rows.append([
        f'stream of {s["num_ratings"]:,}', 'SGNHT', FRICTIONS[0], ETAS[0],
        s['rmse'], None, ''])
  noise = settings['low rank']['noise']
  final = {
      data: {name: curves[-1].mean(axis=-1) for name, curves in found.items()}
      for data, found in errors.items()}
  low, formatted = final['low rank'], final['MovieLens format']
  small, large = streams
  growths = [
      large[name] / small[name] - 1. for name in ('peak_mb', 'writing_peak_mb')]
  claims = [
      common.Claim(
          'SGNHT recovers the low rank set: test RMSE within 10% of the noise '
          'at all etas (a = 0.01)',
          bool(np.all(low['SGNHT'][:4] < 1.1 * noise)),
          f'{show(low["SGNHT"][:4])} against a noise of {noise}; with d '
          'parameters and N ratings least squares comes to about '
          'sqrt(1 + d / N) times the noise, here '
          f'{noise * least_squares(settings["low rank"]):.4f}'),
      *(claim for data, found in final.items()
        for claim in (
            *worse_and_worse(data, found['SGHMC'][:4], settings[data]),
            *diverges(data, found, deviations[data], settings[data]))),
      *(as_good(data, found) for data, found in final.items()),
      *(tuned(data, found) for data, found in final.items()),
      common.Claim(
          'On the file in the MovieLens format SGNHT with a = 0.01 predicts '
          'better than the mean rating at every eta',
          bool(np.all(
              formatted['SGNHT'][:4] < deviations['MovieLens format'])),
          f'at most {formatted["SGNHT"][:4].max():.4f}; mean rating '
          f'{deviations["MovieLens format"]:.4f}'),
      common.Claim(
          f'{large["num_ratings"]:,} ratings are read at bounded memory: the '
          'peak is within 10% of that with a tenth of them',
          max(growths) < 0.1,
          f'reading and sampling {large["peak_mb"]:.0f} MB and '
          f'{small["peak_mb"]:.0f} MB, writing the shards '
          f'{large["writing_peak_mb"]:.0f} MB and '
          f'{small["writing_peak_mb"]:.0f} MB; TensorFlow alone is '
          f'{large["before_mb"]:.0f} MB, the '
          f'ratings alone are {large["ratings_mb"]:.0f} MB; '
          f'{large["num_steps"]} steps read {large["ratings_read"]:,} of them'),
  ]
  settings['streams'] = streams
  return common.Result(
      ['data', 'sampler', 'a', 'eta', 'test RMSE', 'spread', 'published'],
      rows, claims, draw(errors, deviations, settings), settings,
      notes='The stream is too short to learn from. With a = 0.1 and the '
      'smallest eta neither sampler has settled by the last step. Published, '
      'on data that are not here: RMSE of 0.85 to 0.86 on MovieLens 1M.')


def draw(errors, deviations, settings):
  picture = figure.Figure(figsize=(11, 5), layout='constrained')
  axes = picture.subplots(2, len(ETAS), sharex=True, sharey='row')
  for row, (data, by_method) in zip(axes, errors.items()):
    for k, (eta, a) in enumerate(SETTINGS):
      axis = row[k % len(ETAS)]
      for m, name in enumerate(METHODS):
        curve = by_method[name][:, k].mean(axis=-1)
        steps = settings[data]['num_steps'] * np.linspace(0.2, 1., len(curve))
        if not np.isfinite(curve[-1]):
          axis.text(
              0.97, 0.9 - 0.1 * (k // len(ETAS)),
              f'{name}, a = {a:g}, diverged', color=COLORS[m], ha='right',
              transform=axis.transAxes)
        axis.plot(
            steps, curve, color=COLORS[m], linestyle='-' if a == 0.01 else ':',
            label=f'{name}, a = {a:g}')
      axis.set(title=f'{data}, eta = {eta:g}')
      axis.title.set_fontsize('small')
    ends = np.concatenate([
        curves[[0, -1]].mean(axis=-1) for curves in by_method.values()], axis=1)
    first, last = ends[:, np.isfinite(ends[1])]
    row[0].set(ylabel='test RMSE', ylim=(
        0.98 * last.min(), min(1.02 * first.max(), 1.05 * deviations[data])))
  for axis in axes[-1]:
    axis.set_xlabel('steps')
  picture.legend(
      *axes[0, 0].get_legend_handles_labels(), loc='outside lower center',
      ncols=4)
  return picture


def main(argv=None):
  return common.main('matrix_factorization', run, __doc__, argv)


if __name__ == '__main__':
  main()
