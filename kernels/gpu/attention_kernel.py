"""Paged attention's kernel: FlashAttention's loop over the items of a work list.

Knows nothing of how work is cut up (`attention_plan.py`) or launched (`attention.py`). One program
computes one item for one KV head: a few query tokens times GROUP heads against a range of KV
positions. Source: FlashAttention-2 (Dao 2023).

Invariants: scores and sums are float32; what lies outside a tile's visible positions is never
loaded, so that a recycled page's NaN cannot meet a weight of 0; a KV range in which a row sees
nothing leaves that row's bits unchanged.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.gpu import attention_plan, tuning
from kernels.gpu.attention_plan import DECODE, PREFILL
from kernels.gpu.launch import AotVariant, next_power_of_2, pointer_type

ITEM_FIELDS = tl.constexpr(attention_plan.ITEM_FIELDS)
LOG2_E = tl.constexpr(math.log2(math.e))
# Below every score, and finite: the difference of two of them is 0 and not NaN.
LOWEST = tl.constexpr(-1.0e30)


def blocks_for_group(config: tuning.LaunchConfig, group: int) -> dict[str, int]:
    """The blocks of a tile form; a tile holds at least one token with all its heads."""
    return {**config.blocks, "BLOCK_M": max(config.blocks["BLOCK_M"], next_power_of_2(group))}


@triton.jit
def attend_kernel(
    out_ptr,
    partial_ptr,
    lse_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    items_ptr,
    counts_ptr,
    block_table_ptr,
    score_scale,
    stride_query_token,
    stride_query_head,
    stride_cache_head,
    stride_cache_page,
    stride_cache_token,
    stride_table,
    LIST: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Grid (Hkv, items): attend one item; to out [T, Hq, D], or where split, to the workspace.

    Workspace: partial [R, Hq, D] and lse [R, Hq] float32, normalised, lse to base 2 (-inf where a
    row sees nothing). `score_scale` turns a product into a base-2 score, or with SOFT_CAP c into
    2 log2(e) / c times a score.
    """
    kv_head = tl.program_id(0)
    index = tl.program_id(1)
    if index >= tl.load(counts_ptr + LIST):
        return
    item_ptr = items_ptr + index.to(tl.int64) * ITEM_FIELDS
    sequence = tl.load(item_ptr).to(tl.int64)
    first_row = tl.load(item_ptr + 1).to(tl.int64)
    num_rows = tl.load(item_ptr + 2)
    first_position = tl.load(item_ptr + 3)
    kv_begin = tl.load(item_ptr + 4)
    kv_end = tl.load(item_ptr + 5)
    partial_row = tl.load(item_ptr + 6).to(tl.int64)
    first_visible = 0
    if WINDOW > 0:
        first_visible = tl.maximum(first_position - WINDOW + 1, 0)
        kv_begin = tl.maximum(kv_begin, first_visible // BLOCK_N * BLOCK_N)

    # Row r of the tile is query head r % GROUP of token r // GROUP.
    rows = tl.arange(0, BLOCK_M)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    position = first_position + token
    dims = tl.arange(0, BLOCK_D)
    dim_mask = dims < HEAD_DIM
    row_mask = (token < num_rows)[:, None] & dim_mask[None, :]
    query_offsets = (first_row + token) * stride_query_token + head * stride_query_head
    query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=row_mask, other=0.0)

    table_ptr = block_table_ptr + sequence * stride_table
    cache_head = kv_head.to(tl.int64) * stride_cache_head
    columns = tl.arange(0, BLOCK_N)
    top = tl.full([BLOCK_M], LOWEST, dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for start in range(kv_begin, kv_end, BLOCK_N):
        kv = start + columns
        kv_mask = (kv < kv_end) & (kv >= first_visible)
        if BLOCK_SIZE % BLOCK_N == 0:
            page = tl.load(table_ptr + start // BLOCK_SIZE).to(tl.int64)
            kv_offsets = page * stride_cache_page + (kv % BLOCK_SIZE) * stride_cache_token
        else:
            pages = tl.load(table_ptr + kv // BLOCK_SIZE, mask=kv_mask, other=0).to(tl.int64)
            kv_offsets = pages * stride_cache_page + (kv % BLOCK_SIZE) * stride_cache_token
        offsets = cache_head + kv_offsets[:, None] + dims[None, :]
        load_mask = kv_mask[:, None] & dim_mask[None, :]
        keys = tl.load(key_ptr + offsets, mask=load_mask, other=0.0)
        values = tl.load(value_ptr + offsets, mask=load_mask, other=0.0)

        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * score_scale
        if SOFT_CAP > 0:
            # tanh(x) = 1 - 2 / (exp(2x) + 1)
            scores = SOFT_CAP * LOG2_E * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
        visible = kv_mask[None, :] & (kv[None, :] <= position[:, None])
        if WINDOW > 0:
            visible = visible & (kv[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))

        new_top = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_top[:, None])
        rescale = tl.exp2(top - new_top)
        total = total * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None]
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
        top = new_top

    sees_any = total > 0
    acc = acc / tl.where(sees_any, total, 1.0)[:, None]
    num_heads = tl.num_programs(0) * GROUP
    if partial_row < 0:
        out_rows = (first_row + token) * num_heads + head
        out_ptrs = out_ptr + out_rows[:, None] * HEAD_DIM + dims[None, :]
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=row_mask)
    else:
        partial_rows = (partial_row + token) * num_heads + head
        tl.store(partial_ptr + partial_rows[:, None] * HEAD_DIM + dims[None, :], acc, mask=row_mask)
        lse = tl.where(sees_any, top + tl.log2(total), float("-inf"))
        tl.store(lse_ptr + partial_rows, lse, mask=token < num_rows)


def aot_variants() -> list[AotVariant]:
    """Both tile forms, for the head sizes and pages that are served."""
    bf16, fp32 = torch.bfloat16, torch.float32
    return [
        # Llama-3-8B and its like, on pages of 16 and of 64 tokens.
        _attend_variant("decode", bf16, head_dim=128, group=4, block_size=16),
        _attend_variant("decode", bf16, head_dim=128, group=4, block_size=64),
        _attend_variant("prefill", bf16, head_dim=128, group=4, block_size=16),
        _attend_variant("prefill", bf16, head_dim=128, group=4, block_size=64),
        # SmolLM2-135M: a group that is no power of two.
        _attend_variant("decode", bf16, head_dim=64, group=3, block_size=16),
        _attend_variant("prefill", bf16, head_dim=64, group=3, block_size=16),
        _attend_variant("decode", fp32, head_dim=64, group=3, block_size=16),
        _attend_variant("prefill", fp32, head_dim=64, group=3, block_size=16),
        # Head sizes that are padded, and a window with a soft cap.
        _attend_variant("decode", bf16, head_dim=96, group=1, block_size=16),
        _attend_variant("prefill", bf16, head_dim=80, group=1, block_size=16),
        _attend_variant("decode", bf16, head_dim=128, group=2, block_size=16, window=4096, cap=50),
        _attend_variant("prefill", bf16, head_dim=128, group=2, block_size=16, window=4096, cap=50),
    ]


def _attend_variant(
    form: str,
    dtype: torch.dtype,
    *,
    head_dim: int,
    group: int,
    block_size: int,
    window: int = 0,
    cap: float = 0.0,
) -> AotVariant:
    table = tuning.ATTENTION_DECODE if form == "decode" else tuning.ATTENTION_PREFILL
    config = table[dtype.itemsize]
    element, number, index = pointer_type(dtype), pointer_type(torch.float32), "*i32"
    pointers = {
        "out_ptr": element,
        "partial_ptr": number,
        "lse_ptr": number,
        "query_ptr": element,
        "key_ptr": element,
        "value_ptr": element,
        "items_ptr": index,
        "counts_ptr": index,
        "block_table_ptr": index,
    }
    strides = {
        "stride_query_token": "i32",
        "stride_query_head": "i32",
        "stride_cache_head": "i32",
        "stride_cache_page": "i32",
        "stride_cache_token": "i32",
        "stride_table": "i32",
    }
    constexprs = {
        "LIST": DECODE if form == "decode" else PREFILL,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "WINDOW": window,
        "SOFT_CAP": float(cap),
        "BLOCK_D": next_power_of_2(head_dim),
        **blocks_for_group(config, group),
    }
    special = f"_w{window}_c{cap:g}" if window else ""
    return AotVariant(
        name=f"attend_{form}_{element[1:]}_d{head_dim}_g{group}_page{block_size}{special}",
        kernel=attend_kernel,
        signature={**pointers, "score_scale": "fp32", **strides}
        | dict.fromkeys(constexprs, "constexpr"),
        constexprs=constexprs,
        divisible=(*pointers, *strides),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        wants_dot=dtype != torch.float32,
    )
