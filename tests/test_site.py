"""The pages of documentation, as a browser shows them at three widths.

Needs the extra `docs`, and Chromium (on Debian: apt-get install chromium).
After a change that is meant, `UPDATE_SCREENSHOTS=1 pytest tests/test_site.py -m
slow` writes the pictures anew that pages are compared with.
"""

import contextlib
import functools
import http.server
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parent.parent
WIDTHS = [1280, 768, 390]
CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
SCREENSHOTS = pathlib.Path(__file__).parent / 'screenshots'
# By name a page, and the first element there of this kind.
SHOWN = {
    'formula': ('tutorials/6_hierarchical_model', '.katex-display'),
    'table': ('scaling', '.md-content table'),
    'code': ('tour', '.md-content pre'),
    'header': ('tour', '.md-header')}

# What is wider than the page, and where it sticks out.
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  return [...document.querySelectorAll('.md-content *')]
    .filter(e => e.getBoundingClientRect().right > width + 1
                 && !e.closest('pre, .md-typeset__scrollwrap, .katex-display'))
    .map(e => e.outerHTML.slice(0, 120)).slice(0, 5)
    .concat(['page: ' + document.documentElement.scrollWidth]);
}"""
# Mathematics that is still text.
RAW = """() => [...document.querySelectorAll('.md-content p, .md-content li')]
  .map(e => { const copy = e.cloneNode(true);
              copy.querySelectorAll('.katex, code').forEach(k => k.remove());
              return copy.textContent; })
  .filter(t => /\\\\(frac|sum|theta|sim|nabla|sqrt|log)|\\$\\$|\\\\\\(/.test(t))
  .map(t => t.slice(0, 120))"""
FAILED = """() => [...document.querySelectorAll('.katex-error')]
  .map(e => e.textContent)"""
# Fences of code that Markdown has not read as such.
FENCES = """() => (document.querySelector('.md-content') || document.body)
  .innerText.split('\\n').filter(l => l.includes('```'))"""
# Links to places in a page that are not there.
DEAD = """() => [...document.querySelectorAll('a[href*="#"]')]
  .filter(a => a.pathname === location.pathname && a.hash.length > 1
               && a.origin === location.origin
               && !document.getElementById(decodeURIComponent(a.hash.slice(1))))
  .map(a => a.hash)"""
# Tables that scroll and do not say so.
UNSIGNED = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')]
  .filter(w => w.scrollWidth > w.clientWidth + 1 && (
      !w.previousElementSibling
      || !w.previousElementSibling.matches('.table-sign:not([hidden])')))
  .map(w => w.textContent.slice(0, 80))"""
# Lines of at most 80 columns that do not fit, and words that are cut.
CLIPPED = """() => [...document.querySelectorAll('.md-content pre > code')]
  .filter(c => c.scrollWidth > c.clientWidth + 1
               && c.textContent.split('\\n').every(l => l.length <= 80))
  .map(c => c.textContent.slice(0, 200))"""

# What does not depend on the width is looked for at the first alone.
ON_ALL_PAGES = dict(overflow=OVERFLOW, unsigned=UNSIGNED)
ON_WIDE_PAGES = dict(
    ON_ALL_PAGES, raw=RAW, failed=FAILED, fences=FENCES, dead=DEAD,
    clipped=CLIPPED)


def together(checks):
  """One script, which returns what each finds."""
  parts = (f'{name}: ({script})()' for name, script in checks.items())
  return '() => ({' + ', '.join(parts) + '})'


# After a change of width: events are handled before the second frame.
SETTLED = """() => new Promise(
  done => requestAnimationFrame(() => requestAnimationFrame(done)))"""


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  """The address of the pages, built anew and served below a subpath."""
  pytest.importorskip('playwright')
  pytest.importorskip('mkdocs')
  if CHROMIUM is None:
    pytest.skip('There is no chromium: apt-get install chromium.')
  folder = tmp_path_factory.mktemp('site')
  build = subprocess.run(
      [sys.executable, '-m', 'mkdocs', 'build', '--strict',
       '--site-dir', str(folder / 'docs')],
      cwd=ROOT, capture_output=True, text=True, check=False,
      env={**os.environ, 'NO_MKDOCS_2_WARNING': '1',
           'SITE_URL': 'https://example.org/docs/'})
  assert build.returncode == 0, build.stdout + build.stderr
  with serving(folder) as address:
    yield f'{address}/docs', folder / 'docs'


@contextlib.contextmanager
def serving(folder):
  class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers as a host of pages does: with 404.html where there is none."""

    def log_message(self, *arguments):
      del arguments

    def send_error(self, code, message=None, explain=None):
      del message, explain
      body = (folder / 'docs' / '404.html').read_bytes()
      self.send_response(code)
      self.send_header('Content-Type', 'text/html')
      self.end_headers()
      self.wfile.write(body)

  server = http.server.ThreadingHTTPServer(
      ('127.0.0.1', 0), functools.partial(Handler, directory=str(folder)))
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    yield f'http://127.0.0.1:{server.server_port}'
  finally:
    server.shutdown()


@pytest.fixture(scope='module')
def browser(site):
  del site
  from playwright import sync_api

  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=CHROMIUM, args=['--no-sandbox'])
    yield browser
    browser.close()


@pytest.mark.weekly
@pytest.mark.slow
def test_pages(site, browser):
  """Nothing sticks out, mathematics is set, no link within a page is dead."""
  address, folder = site
  page = browser.new_page(viewport=dict(width=WIDTHS[0], height=900))
  # Each page would make the index of the search anew, in a worker.
  index = json.loads((folder / 'search' / 'search_index.json').read_text())
  assert index['docs']
  page.route('**/search_index.json', lambda route: route.fulfill(
      json={**index, 'docs': []}))
  complaints, faults = [], {}
  page.on('console', lambda message: complaints.append(message.text)
          if message.type == 'error' else None)
  page.on('pageerror', lambda error: complaints.append(str(error)))
  num_formulas = 0
  for path in sorted(folder.rglob('*.html')):
    name = path.relative_to(folder).as_posix()
    page.set_viewport_size(dict(width=WIDTHS[0], height=900))
    page.goto(f'{address}/{name}', wait_until='load')
    num_formulas += len(page.query_selector_all('.katex'))
    for width in WIDTHS:
      page.set_viewport_size(dict(width=width, height=900))
      page.evaluate(SETTLED)
      for what, found in page.evaluate(together(
          ON_WIDE_PAGES if width == WIDTHS[0] else ON_ALL_PAGES)).items():
        if found:
          faults[f'{name} at {width}, {what}'] = found
    if complaints:
      faults[f'{name}, console'] = complaints[:]
      complaints.clear()
  page.close()
  assert not faults, '\n'.join(f'{k}: {v}' for k, v in faults.items())
  assert num_formulas > 20


@pytest.mark.slow
def test_a_missing_page_is_shown_with_its_style(site, browser):
  """At any depth: its links start from where the site is, not from the root."""
  address, _ = site
  page = browser.new_page()
  missing = []
  page.on('response', lambda response: missing.append(response.url)
          if response.status >= 400 else None)
  page.goto(f'{address}/a/b/nowhere.html', wait_until='load')
  assert missing == [f'{address}/a/b/nowhere.html']
  assert '404' in page.inner_text('.md-content')
  page.close()


@pytest.mark.slow
def test_the_version_is_shown(site, browser):
  address, _ = site
  page = browser.new_page()
  page.goto(f'{address}/index.html', wait_until='load')
  assert '0.' in page.inner_text('.md-header__title')
  page.close()


def drawn_with():
  """What letters look like depends on these."""
  font = subprocess.run(
      ['fc-match', 'sans-serif'], capture_output=True, text=True, check=False)
  version = subprocess.run(
      [CHROMIUM, '--version'], capture_output=True, text=True, check=True)
  return dict(
      browser=version.stdout.split('.')[0], font=font.stdout.split(':')[0])


def shares_of_other_pixels(one, other):
  """The share of pixels that differ by more than a quarter of full scale."""
  from PIL import Image

  one, other = (
      np.asarray(Image.open(io.BytesIO(data)).convert('L'), np.float32)
      for data in (one, other))
  if one.shape != other.shape:
    return 1.
  return np.mean(np.abs(one - other) > 64.)


@pytest.mark.weekly_after(1)
@pytest.mark.slow
@pytest.mark.parametrize('width', WIDTHS)
def test_screenshots(site, browser, width):
  """A formula, a table, code and the header look as they did."""
  address, _ = site
  about = SCREENSHOTS / 'drawn_with.json'
  is_update = 'UPDATE_SCREENSHOTS' in os.environ
  if is_update:
    SCREENSHOTS.mkdir(exist_ok=True)
    about.write_text(json.dumps(drawn_with()) + '\n')
  elif json.loads(about.read_text()) != drawn_with():
    pytest.skip(
        f'The pictures are by {about.read_text().strip()}; here is '
        f'{drawn_with()}.')
  page = browser.new_page(viewport=dict(width=width, height=900))
  found = {}
  for name, (path, selector) in SHOWN.items():
    page.goto(f'{address}/{path}.html', wait_until='networkidle')
    element = page.query_selector(selector)
    picture = element.screenshot(animations='disabled')
    file = SCREENSHOTS / f'{name}_{width}.png'
    if is_update:
      file.write_bytes(picture)
    found[name] = shares_of_other_pixels(picture, file.read_bytes())
    if name == 'formula':
      # Planted: its source in place of the formula.
      element.evaluate(
          'e => { e.textContent = e.querySelector("annotation").textContent }')
      assert shares_of_other_pixels(
          element.screenshot(animations='disabled'), file.read_bytes()) > 0.01
  page.close()
  assert all(share < 0.002 for share in found.values()), found
