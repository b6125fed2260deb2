"""The docstrings' mathematics and examples as blocks of code.

In the docstrings a formula is a block that is indented by two spaces, and an
example starts with `>>>`. Markdown wants fences around both.
"""

import re

import griffe

_SECTION = re.compile(
    r'(Args|Arguments|Returns|Yields|Raises|Attributes):$')
_REFERENCE = re.compile(r'\[\d+\]: ')


def fenced(text: str) -> str:
  """A docstring with fences around its formulas and examples."""
  lines, found, section, k = text.split('\n'), [], False, 0
  while k < len(lines):
    line = lines[k]
    if line and not line.startswith(' '):
      section = bool(_SECTION.match(line))
    is_example = line.lstrip().startswith('>>>')
    is_formula = (
        not section and line.startswith('  ') and (
            k == 0 or not lines[k - 1].strip()))
    if not (is_example or is_formula):
      if _REFERENCE.match(line.strip()):
        found.append('')  # A paragraph for each.
      found.append(line)
      k += 1
      continue
    block = []
    while k < len(lines) and (
        lines[k].strip() or (is_formula and _goes_on(lines, k))):
      block.append(lines[k])
      k += 1
    indent = min(len(b) - len(b.lstrip()) for b in block if b.strip())
    margin = ' ' * (indent if section else 0)
    found += [f'{margin}```{"pycon" if is_example else "text"}']
    found += [margin + b[indent:] for b in block]
    found += [f'{margin}```']
  return '\n'.join(found)


def _goes_on(lines, k):
  """Whether a formula goes on after the blank line k."""
  return k + 1 < len(lines) and lines[k + 1].startswith('  ')


class FencedDocstrings(griffe.Extension):
  """Fences for all docstrings that are read."""

  def on_instance(self, *, obj, **_) -> None:
    if obj.docstring is not None:
      obj.docstring.value = fenced(obj.docstring.value)
