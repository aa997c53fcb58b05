"""The two kernels of batched LoRA. `kernels.gpu.lora` says what they are for and launches them.

Knows nothing of sites' names. Invariant: every load from the pool is masked by the adapter's rank
and the vector's length, so that bytes of another owner never reach a sum.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.adapter_tiles import HEADER_A, HEADER_B, HEADER_RANKS, UNIT_BYTES, load_tile


@triton.jit
def shrink_kernel(
    x_ptr,
    partials_ptr,
    pool_ptr,
    tables_ptr,
    tiles_ptr,
    counts_ptr,
    num_tiles,
    header,
    num_in,
    split_columns,
    stride_xt,
    stride_ps,
    stride_pt,
    ITEM_BYTES: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """partials[split, t, r] = x[t, columns of the split] @ A[r, columns of the split]."""
    tile, rank_begin, split = tl.program_id(0), tl.program_id(1) * BLOCK_R, tl.program_id(2)
    if tile >= tl.load(counts_ptr):
        return
    row0, num_rows, table = load_tile(tiles_ptr, tables_ptr, num_tiles, tile)
    rank_end = tl.load(table + header + HEADER_RANKS + 2)
    if rank_begin >= rank_end:
        return
    ranks = rank_begin + tl.arange(0, BLOCK_R)
    is_rank = ranks < rank_end
    places = tl.load(table + tl.load(table + header + HEADER_A) + ranks, mask=is_rank, other=0)
    a_ptrs = pool_ptr + places.to(tl.int64)[None, :] * (UNIT_BYTES // ITEM_BYTES)
    rows = tl.arange(0, BLOCK_T)
    is_row = rows < num_rows
    x_ptrs = x_ptr + (row0 + rows)[:, None] * stride_xt

    acc = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
    begin = split * split_columns
    for column0 in range(begin, tl.minimum(begin + split_columns, num_in), BLOCK_K):
        columns = column0 + tl.arange(0, BLOCK_K)
        is_column = columns < num_in
        x = tl.load(x_ptrs + columns[None, :], mask=is_row[:, None] & is_column[None, :], other=0)
        a = tl.load(a_ptrs + columns[:, None], mask=is_column[:, None] & is_rank[None, :], other=0)
        acc = tl.dot(x, a, acc, input_precision="ieee")

    out_ptrs = partials_ptr + split.to(tl.int64) * stride_ps + (row0 + rows)[:, None] * stride_pt
    tl.store(out_ptrs + ranks[None, :], acc, mask=is_row[:, None] & is_rank[None, :])


@triton.jit
def expand_kernel(
    y_ptr,
    partials_ptr,
    pool_ptr,
    tables_ptr,
    tiles_ptr,
    counts_ptr,
    num_tiles,
    header,
    width0,
    width1,
    width2,
    piece_columns,
    num_pieces,
    stride_yt,
    stride_ps,
    stride_pt,
    ITEM_BYTES: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """y[t, columns] += (sum of partials[:, t, part's ranks]) @ B[part's ranks, columns].

    A program has one block of columns of one part; blocks do not cross from part to part.
    """
    tile, block = tl.program_id(0), tl.program_id(1)
    if tile >= tl.load(counts_ptr):
        return
    row0, num_rows, table = load_tile(tiles_ptr, tables_ptr, num_tiles, tile)
    # The second part begins at block `first`, the third at block `second`.
    first = tl.cdiv(width0, BLOCK_N)
    second = first + tl.cdiv(width1, BLOCK_N)
    rank_begin = 0
    rank_end = tl.load(table + header + HEADER_RANKS)
    width = width0
    out_begin = 0
    if block >= second:
        rank_begin = tl.load(table + header + HEADER_RANKS + 1)
        rank_end = tl.load(table + header + HEADER_RANKS + 2)
        width = width2
        out_begin = width0 + width1
        block -= second
    elif block >= first:
        rank_begin = rank_end
        rank_end = tl.load(table + header + HEADER_RANKS + 1)
        width = width1
        out_begin = width0
        block -= first
    if rank_begin >= rank_end:
        return
    column0 = block * BLOCK_N
    piece = column0 // piece_columns
    columns = column0 + tl.arange(0, BLOCK_N)
    is_column = columns < width
    b_list = tl.load(table + header + HEADER_B) + piece
    rows = tl.arange(0, BLOCK_T)
    is_row = rows < num_rows
    partial_ptrs = partials_ptr + (row0 + rows)[:, None] * stride_pt

    acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for rank0 in range(rank_begin, rank_end, BLOCK_R):
        ranks = rank0 + tl.arange(0, BLOCK_R)
        is_rank = ranks < rank_end
        places = tl.load(table + b_list + ranks * num_pieces, mask=is_rank, other=0)
        b_ptrs = pool_ptr + places.to(tl.int64)[:, None] * (UNIT_BYTES // ITEM_BYTES)
        b_ptrs += (columns - piece * piece_columns)[None, :]
        b = tl.load(b_ptrs, mask=is_rank[:, None] & is_column[None, :], other=0)
        is_partial = is_row[:, None] & is_rank[None, :]
        hidden = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
        for split in tl.static_range(NUM_SPLITS):
            split_ptrs = partial_ptrs + split * stride_ps + ranks[None, :]
            hidden += tl.load(split_ptrs, mask=is_partial, other=0.0)
        rounded = hidden.to(b.dtype)
        acc = tl.dot(rounded, b, acc, input_precision="ieee")
        if ITEM_BYTES == 2:
            # What the rounding cut off goes through a product of its own: the reads of B are
            # what takes the time, and y is then rounded once.
            rest = (hidden - rounded.to(tl.float32)).to(b.dtype)
            acc = tl.dot(rest, b, acc)

    y_ptrs = y_ptr + (row0 + rows)[:, None] * stride_yt + (out_begin + columns)[None, :]
    is_output = is_row[:, None] & is_column[None, :]
    y = tl.load(y_ptrs, mask=is_output, other=0).to(tl.float32)
    tl.store(y_ptrs, (y + acc).to(y_ptr.dtype.element_ty), mask=is_output)
