"""Docstrings as the reference shows them.

In the docstrings a formula is a block that is indented by two spaces, and an
example starts with `>>>`. Markdown wants fences around both. The arguments, the
results and the errors follow the first line; the mathematics and the examples
come after them. An annotation that is `Any` tells nothing, and is left out.
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


def split(text: str) -> tuple[str, str, str]:
  """A docstring's first line, its sections such as Args, and the rest."""
  first, _, rest = text.partition('\n')
  sections, others, where = [], [], None
  for line in rest.split('\n'):
    if line and not line.startswith(' '):
      where = sections if _SECTION.match(line) else others
    (others if where is None else where).append(line)
  return first, '\n'.join(sections).strip('\n'), '\n'.join(others).strip('\n')


def arguments_first(text: str, sections: str = '') -> str:
  """A docstring with its sections, and others, right after its first line.

  With fences: a formula without them would be read as the end of a section.
  """
  first, own, rest = split(text)
  return '\n\n'.join(
      fenced(part) for part in (first, own, sections, rest) if part).strip()


class Reference(griffe.Extension):
  """Fences for all docstrings that are read, and arguments first."""

  def on_class_members(self, *, cls, **_) -> None:
    """The arguments of the constructor are those of the class."""
    if cls.docstring is None:
      return
    init = cls.members.get('__init__')
    own = ''
    if init is not None and init.docstring is not None:
      _, sections, rest = split(init.docstring.value)
      own = '\n\n'.join(part for part in (sections, rest) if part)
      init.docstring = None
    cls.docstring.value = arguments_first(cls.docstring.value, own)

  def on_instance(self, *, obj, **_) -> None:
    for parameter in getattr(obj, 'parameters', ()):
      if str(parameter.annotation) == 'Any':
        parameter.annotation = None
    if obj.docstring is not None and not obj.is_class:
      obj.docstring.value = arguments_first(obj.docstring.value)
