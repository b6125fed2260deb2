"""What MkDocs asks of us: notebooks as pages, and the version.

A notebook becomes a page of Markdown, so that its mathematics, its code and its
titles look as those of all pages do. Cells with the tag `install` are left out.
"""

import base64
import configparser
import json
import pathlib
import re
import sys

from mkdocs.structure import files as files_lib

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import badges  # noqa: E402

ROOT = pathlib.Path(__file__).parent.parent
_LINK = re.compile(r'(\]\((?:[\w./]*/)?\d_\w+)\.ipynb(?=[)#])')


def on_config(config):
  """The version in the name of the site."""
  config.site_name = f'tfp_sgmcmc {version()}'
  return config


def on_files(files, config):
  """A page, and its pictures, in place of each notebook."""
  for file in list(files):
    if not file.src_uri.endswith('.ipynb'):
      continue
    stem = file.src_uri.removesuffix('.ipynb')
    notebook = json.loads(pathlib.Path(file.abs_src_path).read_text())
    name = pathlib.PurePosixPath(stem).name
    text, pictures = page_of(notebook, name)
    if not text.startswith('[![Open in Colab]'):
      text = f'{badges.badge(config.repo_url or "", name)}\n\n{text}'
    files.append(files_lib.File.generated(
        config, f'{stem}.md', content=text))
    for picture, content in pictures.items():
      files.append(files_lib.File.generated(
          config, str(pathlib.PurePosixPath(stem).parent / picture),
          content=content))
  return files


def on_page_markdown(markdown, **_):
  """Links to notebooks, and theirs to pages, lead to where these are here."""
  return _LINK.sub(r'\1.md', markdown).replace('](../docs/', '](../')


def version() -> str:
  """The version as setup.cfg has it, or the file that it names."""
  setup = configparser.ConfigParser()
  setup.read(ROOT / 'setup.cfg')
  value = setup['metadata']['version']
  if not value.startswith('attr:'):
    return value
  *module, name = value.removeprefix('attr:').strip().split('.')
  path = ROOT.joinpath(*module)
  path = path / '__init__.py' if path.is_dir() else path.with_suffix('.py')
  return re.search(
      rf"^{name} = ['\"](.+)['\"]", path.read_text(), re.MULTILINE)[1]


def page_of(notebook: dict, stem: str) -> tuple[str, dict[str, bytes]]:
  """A notebook as Markdown, and its pictures by the names of their files."""
  parts, pictures = [], {}
  for cell in notebook['cells']:
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
      parts.append(source)
    elif 'install' not in cell['metadata'].get('tags', []):
      parts.append(_fenced(source, 'python'))
      for output in cell['outputs']:
        data = output.get('data', {})
        text = ''.join(output.get('text') or data.get('text/plain', ''))
        if 'image/png' in data:
          name = f'{stem}_{len(pictures)}.png'
          pictures[name] = base64.b64decode(data['image/png'])
          parts.append(f'![What the cell above draws]({name})')
        elif text:
          parts.append(_fenced(text, '{.text .output}'))
  return '\n\n'.join(parts) + '\n', pictures


def _fenced(text, language):
  return f'````{language}\n{text.rstrip()}\n````'
