"""Which cases of a slow test are left to each week."""

from collections.abc import Container
from collections.abc import Iterable

import pytest


def and_weekly(names: Iterable[str], weekly: Container[str]) -> list:
  """Names for `pytest.mark.parametrize`, those among `weekly` marked so."""
  return [
      pytest.param(name, marks=pytest.mark.weekly) if name in weekly else name
      for name in names]
