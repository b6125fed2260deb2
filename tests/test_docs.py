"""The pages of documentation: their code runs."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parent.parent / 'docs'
BLOCK = re.compile(r'^```python\n(.*?)^```', re.MULTILINE | re.DOTALL)
PAGES = {
    page.name: blocks for page in sorted(DOCS.glob('*.md'))
    if (blocks := BLOCK.findall(page.read_text()))}


@pytest.mark.slow
@pytest.mark.parametrize('name', PAGES)
def test_code_of_a_page_runs(name):
  exec('\n'.join(PAGES[name]), {})
