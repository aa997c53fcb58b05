"""What the kernels over an adapter's tiles share: which rows, and which table.

Knows nothing of what is computed. Invariant: a program past the number of tiles does nothing.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from kernels import adapter_table as words

HEADER_A = tl.constexpr(words.A)
HEADER_B = tl.constexpr(words.B)
HEADER_RANKS = tl.constexpr(words.RANKS)
HEADER_SCALE = tl.constexpr(words.SCALE)
HEADER_BIAS = tl.constexpr(words.BIAS)
HEADER_REPLACED = tl.constexpr(words.REPLACED)
NUM_ROWS = tl.constexpr(words.NUM_ROWS)
RUNS = tl.constexpr(words.RUNS)
ROWS_PER_RUN = tl.constexpr(words.ROWS_PER_RUN)
ROW_STRIDE = tl.constexpr(words.ROW_STRIDE)
IDS = tl.constexpr(words.IDS)
ROW_BIAS = tl.constexpr(words.ROW_BIAS)
UNIT_BYTES = tl.constexpr(words.UNIT_BYTES)
ROW_UNIT_BYTES = tl.constexpr(words.ROW_UNIT_BYTES)


@triton.jit
def load_tile(tiles_ptr, tables_ptr, num_tiles, tile):
    """A tile's first row (int64), its number of rows, and its adapter's table."""
    row0 = tl.load(tiles_ptr + tile).to(tl.int64)
    num_rows = tl.load(tiles_ptr + num_tiles + tile)
    adapter = tl.load(tiles_ptr + 2 * num_tiles + tile)
    table = tl.load(tables_ptr + adapter).to(tl.pointer_type(tl.int32))
    return row0, num_rows, table


@triton.jit
def matrix_row_places(table, record, row, mask, ITEM_BYTES: tl.constexpr):
    """Where rows of a matrix begin, in numbers from the start of the pool (int64)."""
    rows_per_run = tl.load(table + record + ROWS_PER_RUN)
    row_stride = tl.load(table + record + ROW_STRIDE).to(tl.int64)
    runs = tl.load(table + record + RUNS)
    run = tl.load(table + runs + row // rows_per_run, mask=mask, other=0).to(tl.int64)
    within = (row % rows_per_run).to(tl.int64) * row_stride
    return run * (UNIT_BYTES // ITEM_BYTES) + within * (ROW_UNIT_BYTES // ITEM_BYTES)
