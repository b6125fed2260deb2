"""Which cases of a slow test are left to each week."""

from collections.abc import Container
from collections.abc import Iterable
from typing import Any

import pytest


def and_weekly(cases: Iterable[Any], weekly: Container[Any]) -> list:
  """Cases for `pytest.mark.parametrize`, those among `weekly` marked so."""
  return [
      pytest.param(case, marks=pytest.mark.weekly) if case in weekly else case
      for case in cases]
