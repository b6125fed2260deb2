"""The code of README and of the pages of documentation runs, and is right."""

import pathlib
import re

import numpy as np
import pytest

from tests import references

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r'^```python\n(.*?)^```', re.MULTILINE | re.DOTALL)
INCLUDED = re.compile(r'^--8<-- "(.+):(.+)"$', re.MULTILINE)


def text_of(page):
  """A page with the sections of README that it includes."""
  def section(match):
    file, name = match.groups()
    _, text = (ROOT / file).read_text().split(f'[start:{name}] -->\n')
    return text.split(f'<!-- --8<-- [end:{name}]')[0]

  return INCLUDED.sub(section, (ROOT / 'docs' / page).read_text())


PRINTED = re.compile(
    r'^```python\n(.*?)^```\n\n```\n(.*?)^```', re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r'-?\d+\.\d*')


def test_readme_is_short():
  assert len((ROOT / 'README.md').read_bytes()) <= 8000


def run(blocks, of_readme, capsys):
  """Runs blocks of code as one program; returns its names, and what is printed.

  Those of README need nothing before.
  """
  names, printed = {}, {}
  for code in blocks:
    own = {} if code in of_readme else names
    exec(code, own)
    names.update(own)
    printed[code] = capsys.readouterr().out
  return names, printed


@pytest.mark.enough_steps
@pytest.mark.slow
def test_readme(capsys):
  """It prints what it says, to what another processor's rounding changes.

  Laplace's approximation is near enough to the law of so many rows: there are a
  thousand effective draws, and a share of 0.04 of heat.
  """
  readme = (ROOT / 'README.md').read_text()
  blocks = BLOCK.findall(readme)
  names, printed = run(blocks, blocks, capsys)
  found = PRINTED.findall(readme)
  assert len(found) == 2
  for code, wanted in found:
    ours = printed[code]
    assert NUMBER.sub('#', ours).split() == NUMBER.sub('#', wanted).split()
    np.testing.assert_allclose(
        *(np.array(NUMBER.findall(text), float) for text in (ours, wanted)),
        rtol=0.15, atol=0.1)
  draws, mode = np.asarray(names['draws']), names['mode']
  assert draws.shape == (1000, 50, 20)
  sd = np.sqrt(np.diag(np.linalg.inv(
      references.hessian(names['posterior'], mode))))
  assert np.abs((draws.mean(axis=(0, 1)) - mode) / sd).max() < 0.25
  assert abs(np.mean(draws.std(axis=(0, 1)) / sd) - 1.) < 0.1


@pytest.mark.weekly
@pytest.mark.slow
def test_the_tour(capsys):
  """It runs as one program, with README's code in its place."""
  blocks = BLOCK.findall(text_of('tour.md'))
  of_readme = BLOCK.findall((ROOT / 'README.md').read_text())
  assert set(of_readme) <= set(blocks)
  run(blocks, of_readme, capsys)


def test_other_pages_have_no_code_of_their_own():
  """What stands in a page and is not run goes stale."""
  for page in (ROOT / 'docs').glob('*.md'):
    if page.name != 'tour.md':
      assert not BLOCK.findall(page.read_text()), page


def test_links_of_readme_lead_somewhere():
  text = (ROOT / 'README.md').read_text()
  for target in re.findall(r'\]\((?!http)([^)#]+)', text):
    assert (ROOT / target).exists(), target
