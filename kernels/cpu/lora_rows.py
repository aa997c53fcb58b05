"""LoRA of single rows, compiled: a decoding sequence's row against its own adapter, in place.

Per adapter and site this is kilobytes of A and B, less than a call of a tensor library costs. So
one call does a site of all of them, from a table of addresses. Knows nothing of adapters.
"""
# mypy: disable-error-code="attr-defined, call-arg, misc, no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from kernels.cpu.compiled import Float32Matrix, Int64Matrix, compiled
from kernels.interface import LoraSite

HEAD, PART = 4, 5
"""Columns of a table: first row, end row, address of A, its ranks; and for each part the address
of B, its ranks (begin, end) and its outputs (begin, end)."""

Table = np.ndarray[Any, np.dtype[np.int64]]


def addresses(site: LoraSite) -> Table:
    """[HEAD + PART * parts] int64: one adapter's row of a table, but for the rows of the batch.

    The addresses are good for as long as the site's tensors are.
    """
    row = np.zeros(HEAD + PART * len(site.parts), np.int64)
    assert site.a.is_contiguous()
    row[2:HEAD] = site.a.data_ptr(), site.a.shape[0]
    for index, part in enumerate(site.parts):
        assert part.b.t().is_contiguous(), "a part's memory is not rank by rank"
        begin = HEAD + PART * index
        row[begin : begin + PART] = part.b.data_ptr(), *part.rank, *part.out
    return row


@intrinsic
def _float32_pointer(_context, address):
    def build(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(address), build


@compiled(Float32Matrix, Float32Matrix, Int64Matrix)
def add_rows(y, x, table):
    """y [T, N] float32 += what `table` [entries, columns] says, for x [T, K]; rows end in zeros."""
    width = x.shape[1]
    for entry in table:
        a = carray(_float32_pointer(entry[2]), (entry[3], width))
        hidden = np.empty(entry[3], np.float32)
        for row in range(entry[0], entry[1]):
            for rank in range(entry[3]):
                total = np.float32(0.0)
                for k in range(width):
                    total += a[rank, k] * x[row, k]
                hidden[rank] = total
            for column in range(HEAD, entry.shape[0], PART):
                first, out = entry[column + 1], entry[column + 3]
                num_ranks, size = entry[column + 2] - first, entry[column + 4] - out
                b = carray(_float32_pointer(entry[column]), (num_ranks, size))
                target = y[row, out : out + size]
                for rank in range(num_ranks):
                    h = hidden[first + rank]
                    for n in range(size):
                        target[n] += h * b[rank, n]
