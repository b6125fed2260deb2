"""Puts a button that opens it in Colab at the top of each notebook.

  python docs/badges.py https://github.com/OWNER/NAME

Run it once when the address of the repository is known, or has changed. On the
site the buttons come from `REPO_URL`, by `hooks.py`.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent.parent / 'tutorials'
COLAB = 'https://colab.research.google.com'


def badge(address: str, name: str) -> str:
  """The button of a notebook, as Markdown; empty where it is not on GitHub."""
  _, found, repository = address.partition('//github.com/')
  if not found:
    return ''
  return (
      f'[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({COLAB}/github/'
      f'{repository.rstrip("/")}/blob/main/tutorials/{name}.ipynb)')


def main(address: str) -> None:
  """Sets the first line of each notebook's first cell."""
  if not badge(address, 'any'):
    raise SystemExit(f'{address} is no address of a repository on GitHub.')
  for path in sorted(FOLDER.glob('*.ipynb')):
    notebook = json.loads(path.read_text())
    first = notebook['cells'][0]
    text = ''.join(first['source'])
    if text.startswith('[![Open in Colab]'):
      text = text.partition('\n')[2].lstrip('\n')
    text = f'{badge(address, path.stem)}\n\n{text}'
    first['source'] = text.splitlines(keepends=True)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + '\n')


if __name__ == '__main__':
  main(*sys.argv[1:])
