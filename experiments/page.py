"""The page of the results: what papers claim, what is ours, and the pictures.

It is made of the records alone, by `python -m experiments summary`.
"""

from collections.abc import Sequence
import pathlib
import time

from experiments import common

__all__ = ['write']


def write(directory: pathlib.Path, names: Sequence[str]) -> pathlib.Path:
  """Writes README.md beside the records; returns its path."""
  records = [
      record for record in (common.read(directory, name) for name in names)
      if record]
  path = directory / 'README.md'
  path.write_text('\n'.join(_page(records, len(names))) + '\n')
  return path


def _page(records, num_names):
  quoted, own = (
      [(record, claim) for record in records for claim in record['claims']
       if bool(claim['quotation']) == is_quoted]
      for is_quoted in (True, False))
  lines = [
      '# Published results, run again', '',
      f'{len(records)} of {num_names} experiments, '
      f'{time.strftime("%Y-%m-%d")}. '
      f'Of what the papers claim, {_count(quoted)}; of what we claim, '
      f'{_count(own)}. A claim that does not hold stays as it is.', '',
      '## What the papers claim', '',
      'In their words, judged at their settings, or as near to them as the '
      'size of the run and the data at hand allow.', '',
      common.markdown_table(
          ['paper, figure', 'claim', '', 'here'],
          [[f'{q["paper"]}, {q["place"]}', f'"{q["words"]}"',
            _verdict(claim), f'{_link(record)}: {claim["text"]} '
            f'({claim["detail"]})']
           for record, claim in quoted for q in [claim['quotation']]]), '',
      '## What we claim', '',
      'Of comparisons that are ours: every sampler tuned, other settings, '
      'other data.', '',
      common.markdown_table(
          ['experiment', 'claim', '', 'here'],
          [[_link(record), claim['text'], _verdict(claim), claim['detail']]
           for record, claim in own]), '',
      '## The runs', '',
      common.markdown_table(
          ['experiment', 'size', 'seconds', 'of a processor', 'machine',
           'commit'],
          [[_link(r), r['size'], r['seconds'], r['cpu_seconds'], r['machine'],
            r['versions'].get('commit')] for r in records])]
  for record in records:
    name = common.file_name(record['name'], record['size'])
    lines += [
        '', f'## {record["name"]}', '', record['title'], '',
        f'![{record["name"]}]({name}.png)', '']
    if record['notes']:
      lines += [record['notes'], '']
    lines += [
        '<details><summary>All figures</summary>', '',
        common.markdown_table(record['columns'], record['rows']), '',
        '</details>']
  return lines


def _count(claims):
  held = sum(claim['holds'] is True for _, claim in claims)
  unknown = sum(claim['holds'] is None for _, claim in claims)
  rest = f' ({unknown} cannot be told)' if unknown else ''
  return f'{held} of {len(claims)} held{rest}'


def _verdict(claim):
  words = common.verdict(claim).lower()
  return words if claim['holds'] else f'**{words}**'


def _link(record):
  return f'[{record["name"]}](#{record["name"]})'
