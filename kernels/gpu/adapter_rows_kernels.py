"""Kernels of the forms beside LoRA. `kernels.gpu.adapter_rows` says what they are for.

Knows nothing of sites' names. Invariant: a row whose adapter lacks the form is not written.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.adapter_tiles import (
    HEADER_A,
    HEADER_B,
    HEADER_BIAS,
    HEADER_RANKS,
    HEADER_REPLACED,
    HEADER_SCALE,
    IDS,
    NUM_ROWS,
    ROW_BIAS,
    UNIT_BYTES,
    load_tile,
    matrix_row_places,
)

FLOATS_PER_UNIT = tl.constexpr(UNIT_BYTES.value // 4)


@triton.jit
def load_floats(floats_ptr, table, pieces, block_begin, columns, mask, piece_columns):
    """`columns` of a float32 vector that is kept in pieces; the block lies in one piece."""
    piece = block_begin // piece_columns
    place = tl.load(table + pieces + piece).to(tl.int64) * FLOATS_PER_UNIT
    return tl.load(floats_ptr + place + (columns - piece * piece_columns), mask=mask, other=0.0)


@triton.jit
def row_vector_kernel(
    y_ptr,
    base_bias_ptr,
    floats_ptr,
    tables_ptr,
    tiles_ptr,
    counts_ptr,
    num_tiles,
    header,
    num_columns,
    piece_columns,
    stride_yt,
    IS_SCALE: tl.constexpr,
    HAS_BASE_BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """IS_SCALE: y = (y - base bias) * scale + base bias; else y += bias."""
    tile, column0 = tl.program_id(0), tl.program_id(1) * BLOCK_N
    if tile >= tl.load(counts_ptr):
        return
    row0, num_rows, table = load_tile(tiles_ptr, tables_ptr, num_tiles, tile)
    if IS_SCALE:
        pieces = tl.load(table + header + HEADER_SCALE)
    else:
        pieces = tl.load(table + header + HEADER_BIAS)
    if pieces == 0:
        return
    columns = column0 + tl.arange(0, BLOCK_N)
    is_column = columns < num_columns
    vector = load_floats(floats_ptr, table, pieces, column0, columns, is_column, piece_columns)
    rows = tl.arange(0, BLOCK_T)
    y_ptrs = y_ptr + (row0 + rows)[:, None] * stride_yt + columns[None, :]
    mask = (rows < num_rows)[:, None] & is_column[None, :]
    y = tl.load(y_ptrs, mask=mask, other=0).to(tl.float32)

    if IS_SCALE:
        if HAS_BASE_BIAS:
            bias = tl.load(base_bias_ptr + columns, mask=is_column, other=0).to(tl.float32)
            y = (y - bias[None, :]) * vector[None, :] + bias[None, :]
        else:
            y = y * vector[None, :]
    else:
        y += vector[None, :]

    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def replace_rows_kernel(
    hidden_ptr,
    input_ids_ptr,
    pool_ptr,
    tables_ptr,
    tiles_ptr,
    counts_ptr,
    num_tiles,
    header,
    num_columns,
    stride_ht,
    ITEM_BYTES: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """hidden[t] = the adapter's row for input_ids[t], where it has one. A token a program."""
    tile, row = tl.program_id(0), tl.program_id(1)
    if tile >= tl.load(counts_ptr):
        return
    row0, num_rows, table = load_tile(tiles_ptr, tables_ptr, num_tiles, tile)
    record = tl.load(table + header + HEADER_REPLACED)
    if (row >= num_rows) | (record == 0):
        return
    token_id = tl.load(input_ids_ptr + row0 + row).to(tl.int32)
    count = tl.load(table + record + NUM_ROWS)
    ids = tl.load(table + record + IDS)
    index = token_id
    is_replaced = token_id < count
    if ids != 0:
        index = tl.zeros((), tl.int32)
        end = count
        while index < end:
            middle = (index + end) // 2
            is_below = tl.load(table + ids + middle) < token_id
            index = tl.where(is_below, middle + 1, index)
            end = tl.where(is_below, end, middle)
        found = tl.load(table + ids + index, mask=index < count, other=-1)
        is_replaced = found == token_id
    if is_replaced:
        place = matrix_row_places(table, record, index, index < count, ITEM_BYTES)
        out_ptr = hidden_ptr + (row0 + row) * stride_ht
        for column0 in range(0, num_columns, BLOCK_H):
            columns = column0 + tl.arange(0, BLOCK_H)
            is_column = columns < num_columns
            content = tl.load(pool_ptr + place + columns, mask=is_column, other=0)
            tl.store(out_ptr + columns, content.to(hidden_ptr.dtype.element_ty), mask=is_column)


@triton.jit
def embedding_lora_kernel(
    hidden_ptr,
    input_ids_ptr,
    pool_ptr,
    tables_ptr,
    tiles_ptr,
    counts_ptr,
    num_tiles,
    header,
    num_columns,
    piece_columns,
    num_pieces,
    stride_ht,
    ITEM_BYTES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """hidden[t] += B @ A[:, input_ids[t]]. A token and a block of columns a program."""
    tile, row, column0 = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BLOCK_H
    if tile >= tl.load(counts_ptr):
        return
    row0, num_rows, table = load_tile(tiles_ptr, tables_ptr, num_tiles, tile)
    rank_end = tl.load(table + header + HEADER_RANKS + 2)
    if (row >= num_rows) | (rank_end == 0):
        return
    token_id = tl.load(input_ids_ptr + row0 + row).to(tl.int32)
    record = tl.load(table + header + HEADER_A)
    a_ptr = pool_ptr + matrix_row_places(table, record, token_id, token_id >= 0, ITEM_BYTES)
    piece = column0 // piece_columns
    b_list = tl.load(table + header + HEADER_B) + piece
    columns = column0 + tl.arange(0, BLOCK_H)
    is_column = columns < num_columns

    acc = tl.zeros((BLOCK_H,), tl.float32)
    for rank0 in range(0, rank_end, BLOCK_R):
        ranks = rank0 + tl.arange(0, BLOCK_R)
        is_rank = ranks < rank_end
        a = tl.load(a_ptr + ranks, mask=is_rank, other=0).to(tl.float32)
        places = tl.load(table + b_list + ranks * num_pieces, mask=is_rank, other=0)
        b_ptrs = pool_ptr + places.to(tl.int64)[:, None] * (UNIT_BYTES // ITEM_BYTES)
        b_ptrs += (columns - piece * piece_columns)[None, :]
        b = tl.load(b_ptrs, mask=is_rank[:, None] & is_column[None, :], other=0)
        acc += tl.sum(a[:, None] * b.to(tl.float32), axis=0)

    out_ptrs = hidden_ptr + (row0 + row) * stride_ht + columns
    hidden = tl.load(out_ptrs, mask=is_column, other=0).to(tl.float32) + acc
    tl.store(out_ptrs, hidden.to(hidden_ptr.dtype.element_ty), mask=is_column)


@triton.jit
def override_linear_kernel(
    y_ptr,
    x_ptr,
    pool_ptr,
    floats_ptr,
    tables_ptr,
    tiles_ptr,
    counts_ptr,
    num_tiles,
    header,
    num_in,
    piece_columns,
    stride_yt,
    stride_xt,
    ITEM_BYTES: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y[t, ids] = x[t] @ rows.T + row bias. A block of the adapter's rows a program."""
    tile, index0 = tl.program_id(0), tl.program_id(1) * BLOCK_N
    if tile >= tl.load(counts_ptr):
        return
    row0, num_rows, table = load_tile(tiles_ptr, tables_ptr, num_tiles, tile)
    record = tl.load(table + header + HEADER_REPLACED)
    if record == 0:
        return
    count = tl.load(table + record + NUM_ROWS)
    if index0 >= count:
        return
    indices = index0 + tl.arange(0, BLOCK_N)
    is_index = indices < count
    ids = tl.load(table + record + IDS)
    is_listed = tl.where(is_index, ids, 0) != 0
    outputs = tl.load(table + ids + indices, mask=is_listed, other=0)
    outputs = tl.where(is_listed, outputs, indices)
    w_ptrs = pool_ptr + matrix_row_places(table, record, indices, is_index, ITEM_BYTES)[None, :]
    rows = tl.arange(0, BLOCK_T)
    is_row = rows < num_rows
    x_ptrs = x_ptr + (row0 + rows)[:, None] * stride_xt

    acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for column0 in range(0, num_in, BLOCK_K):
        columns = column0 + tl.arange(0, BLOCK_K)
        is_column = columns < num_in
        x = tl.load(x_ptrs + columns[None, :], mask=is_row[:, None] & is_column[None, :], other=0)
        w = tl.load(w_ptrs + columns[:, None], mask=is_column[:, None] & is_index[None, :], other=0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    pieces = tl.load(table + record + ROW_BIAS)
    if pieces != 0:
        bias = load_floats(floats_ptr, table, pieces, index0, indices, is_index, piece_columns)
        acc += bias[None, :]

    y_ptrs = y_ptr + (row0 + rows)[:, None] * stride_yt + outputs[None, :]
    mask = is_row[:, None] & is_index[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=mask)
