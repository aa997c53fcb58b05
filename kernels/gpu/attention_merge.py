"""The merge of sequences whose KV was split: partials weighted by their log-sum-exp.

Knows nothing of keys or queries. Source: Flash-Decoding (Dao et al. 2023). Invariant: parts are
added in order, and one in which a row saw nothing leaves that row's bits unchanged; a row with a
single part comes out as if it had never been split.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu import attention_plan, tuning
from kernels.gpu.launch import AotVariant, next_power_of_2, pointer_type

MERGE_FIELDS = tl.constexpr(attention_plan.MERGE_FIELDS)
MERGES = tl.constexpr(attention_plan.MERGES)
# Below every lse, and finite: the difference of two of them is 0 and not NaN.
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def merge_kernel(
    out_ptr,
    partial_ptr,
    lse_ptr,
    merges_ptr,
    counts_ptr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    """Grid (Hq, merges): out[row, head] = the parts' partials, weighted by exp2 of their lse."""
    head = tl.program_id(0)
    index = tl.program_id(1)
    if index >= tl.load(counts_ptr + MERGES):
        return
    merge_ptr = merges_ptr + index.to(tl.int64) * MERGE_FIELDS
    out_row = tl.load(merge_ptr).to(tl.int64)
    first_row = tl.load(merge_ptr + 1).to(tl.int64)
    row_step = tl.load(merge_ptr + 2)
    num_parts = tl.load(merge_ptr + 3)

    num_heads = tl.num_programs(0)
    dims = tl.arange(0, BLOCK_D)
    dim_mask = dims < HEAD_DIM
    top = LOWEST
    total = 0.0
    acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    for start in range(0, num_parts, BLOCK_PARTS):
        part = start + tl.arange(0, BLOCK_PARTS)
        part_mask = part < num_parts
        rows = (first_row + part * row_step) * num_heads + head
        lse = tl.load(lse_ptr + rows, mask=part_mask, other=float("-inf"))
        partial = tl.load(
            partial_ptr + rows[:, None] * HEAD_DIM + dims[None, :],
            mask=part_mask[:, None] & dim_mask[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(lse, axis=0))
        weights = tl.exp2(lse - new_top)
        rescale = tl.exp2(top - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * partial, axis=0)
        top = new_top
    out = (acc / total).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (out_row * num_heads + head) * HEAD_DIM + dims, out, mask=dim_mask)


def aot_variants() -> list[AotVariant]:
    """For the element types and head sizes that are served."""
    return [
        _merge_variant(torch.bfloat16, head_dim=128),
        _merge_variant(torch.bfloat16, head_dim=64),
        _merge_variant(torch.float32, head_dim=64),
    ]


def _merge_variant(dtype: torch.dtype, head_dim: int) -> AotVariant:
    config = tuning.ATTENTION_MERGE
    number = pointer_type(torch.float32)
    pointers = {
        "out_ptr": pointer_type(dtype),
        "partial_ptr": number,
        "lse_ptr": number,
        "merges_ptr": "*i32",
        "counts_ptr": "*i32",
    }
    constexprs = {"HEAD_DIM": head_dim, "BLOCK_D": next_power_of_2(head_dim), **config.blocks}
    return AotVariant(
        name=f"merge_{pointers['out_ptr'][1:]}_d{head_dim}",
        kernel=merge_kernel,
        signature=pointers | dict.fromkeys(constexprs, "constexpr"),
        constexprs=constexprs,
        divisible=tuple(pointers),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
