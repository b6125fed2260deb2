"""Kernels that stand around others."""

from collections.abc import Iterator
from typing import Any

import tensorflow_probability as tfp

__all__ = ['kernels']


def kernels(kernel: tfp.mcmc.TransitionKernel) -> Iterator[Any]:
  """A kernel, the one that it stands around, and so on to the innermost."""
  while kernel is not None:
    yield kernel
    kernel = getattr(kernel, 'inner_kernel', None)
