"""Loops compiled by Numba, for rows too few and too small for a call of a tensor library.

Knows nothing of what they compute. Invariant: a compiled loop never assumes that numbers are
finite, so that a NaN reaches the check of the logits.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return"
# (Numba has no types.)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types

Float32Vector = types.float32[::1]
Float32Matrix = types.float32[:, ::1]
Int64Vector = types.int64[::1]
Int64Matrix = types.int64[:, ::1]


def compiled(*arguments: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compile a procedure for arguments of these Numba types, when its module is imported.

    The machine code is kept where it may be written, and releases the GIL while it runs.
    """
    # Sums may be reordered for vectors, the same way in every call.
    options: dict[str, Any] = {"error_model": "numpy", "nogil": True}
    options["fastmath"] = {"reassoc", "contract", "nsz"}

    def compile_now(procedure: Callable[..., None]) -> Callable[..., None]:
        signature = types.void(*arguments)
        try:
            return njit(signature, cache=True, **options)(procedure)
        except RuntimeError:  # nowhere to keep machine code: a read-only root without a home
            return njit(signature, **options)(procedure)

    return compile_now
