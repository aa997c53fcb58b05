"""Lets the interpreter's `tl.dot` treat all rows of a tile alike, as a tensor core does.

The interpreter multiplies with numpy, whose BLAS sums a row in an order that depends on where in
the tile the row stands. Here products are summed in float64 and rounded once, so that what is left
of a difference between two places in a batch is the kernel's own.

For tests of bitwise row independence alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def _dot(self: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_: Any) -> TensorHandle:
    product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64)) + d.data
    return TensorHandle(product.astype(d.data.dtype), d.dtype.scalar)


@contextmanager
def rows_alike() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", _dot)
        yield
