"""Rotary embedding and the write of K and V into their pages, in one launch.

Knows nothing of positions: cos and sin come row by row. Source: RoFormer (Su et al. 2021), in the
half-split form of Hugging Face's Llama. Invariant: only the slots of `slot_mapping` are written; a
row whose slot is negative (padding of a captured graph) is rotated and stored nowhere.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import AotVariant, ceil_div, next_power_of_2, pointer_type
from kernels.gpu.tuning import ROPE


@triton.jit
def rope_and_store_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    cos_ptr,
    sin_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slots_ptr,
    num_tokens,
    num_heads,
    num_kv_heads,
    stride_query_token,
    stride_query_head,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    stride_angle_token,
    stride_cache_head,
    stride_cache_page,
    stride_cache_token,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Grid (Hq + 2 Hkv, token blocks): one head of BLOCK_T tokens, the query heads first."""
    head = tl.program_id(0)
    tokens = tl.program_id(1).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    token_mask = tokens < num_tokens
    half: tl.constexpr = HEAD_DIM // 2
    dims = tl.arange(0, BLOCK_HALF)
    mask = token_mask[:, None] & (dims < half)[None, :]
    angles = tokens[:, None] * stride_angle_token + dims[None, :]
    slots = tl.load(slots_ptr + tokens, mask=token_mask, other=-1)
    slot_mask = (slots >= 0)[:, None] & (dims < half)[None, :]
    cache = (slots // BLOCK_SIZE) * stride_cache_page + (slots % BLOCK_SIZE) * stride_cache_token
    cache = cache[:, None] + dims[None, :]

    if head < num_heads:
        rows = query_ptr + tokens[:, None] * stride_query_token + head * stride_query_head
        first, second = _rotate(rows, cos_ptr, sin_ptr, angles, dims, mask, half)
        out = out_ptr + (tokens[:, None] * num_heads + head) * HEAD_DIM + dims[None, :]
        tl.store(out, first.to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(out + half, second.to(out_ptr.dtype.element_ty), mask=mask)
    elif head < num_heads + num_kv_heads:
        kv_head = (head - num_heads).to(tl.int64)
        rows = key_ptr + tokens[:, None] * stride_key_token + kv_head * stride_key_head
        first, second = _rotate(rows, cos_ptr, sin_ptr, angles, dims, mask, half)
        out = key_cache_ptr + kv_head * stride_cache_head + cache
        tl.store(out, first.to(key_cache_ptr.dtype.element_ty), mask=slot_mask)
        tl.store(out + half, second.to(key_cache_ptr.dtype.element_ty), mask=slot_mask)
    else:
        kv_head = (head - num_heads - num_kv_heads).to(tl.int64)
        rows = value_ptr + tokens[:, None] * stride_value_token + kv_head * stride_value_head
        low = tl.load(rows + dims[None, :], mask=mask, other=0.0)
        high = tl.load(rows + half + dims[None, :], mask=mask, other=0.0)
        out = value_cache_ptr + kv_head * stride_cache_head + cache
        tl.store(out, low.to(value_cache_ptr.dtype.element_ty), mask=slot_mask)
        tl.store(out + half, high.to(value_cache_ptr.dtype.element_ty), mask=slot_mask)


@triton.jit
def _rotate(rows, cos_ptr, sin_ptr, angles, dims, mask, half: tl.constexpr):
    """Both halves of [BLOCK_T, HEAD_DIM] at `rows`, turned, in float32."""
    first = tl.load(rows + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(rows + half + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    cos_first = tl.load(cos_ptr + angles, mask=mask, other=0.0).to(tl.float32)
    sin_first = tl.load(sin_ptr + angles, mask=mask, other=0.0).to(tl.float32)
    cos_second = tl.load(cos_ptr + angles + half, mask=mask, other=0.0).to(tl.float32)
    sin_second = tl.load(sin_ptr + angles + half, mask=mask, other=0.0).to(tl.float32)
    return first * cos_first - second * sin_first, second * cos_second + first * sin_second


def rope_and_store_kv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    """Rotates in float32 and rounds once; a slot of -1 is not stored."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, _, block_size, _ = key_cache.shape
    out = query.new_empty(num_tokens, num_heads, head_dim)
    assert key_cache.stride() == value_cache.stride() and key_cache.stride(3) == 1
    assert cos.stride() == sin.stride() and cos.stride(1) == 1
    assert query.stride(2) == key.stride(2) == value.stride(2) == 1
    block_t = ROPE.blocks["BLOCK_T"]
    grid = (num_heads + 2 * num_kv_heads, ceil_div(num_tokens, block_t))
    rope_and_store_kernel[grid](
        out,
        query,
        key,
        value,
        cos,
        sin,
        key_cache,
        value_cache,
        slot_mapping,
        num_tokens,
        num_heads,
        num_kv_heads,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        cos.stride(0),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_HALF=next_power_of_2(head_dim // 2),
        **ROPE.launch_kwargs(),
    )
    return out


def aot_variants() -> list[AotVariant]:
    """The two head sizes of the models that are measured, and float32."""
    return [
        _variant(torch.bfloat16, head_dim=128, block_size=16),
        _variant(torch.bfloat16, head_dim=64, block_size=16),
        _variant(torch.bfloat16, head_dim=128, block_size=64),
        _variant(torch.float32, head_dim=64, block_size=16),
    ]


def _variant(dtype: torch.dtype, *, head_dim: int, block_size: int) -> AotVariant:
    element = pointer_type(dtype)
    names = ("out", "query", "key", "value", "cos", "sin", "key_cache", "value_cache")
    pointers = {f"{name}_ptr": element for name in names} | {"slots_ptr": "*i64"}
    sizes = dict.fromkeys(("num_tokens", "num_heads", "num_kv_heads"), "i32")
    tokens_and_heads = [
        f"stride_{tensor}_{axis}"
        for tensor in ("query", "key", "value")
        for axis in ("token", "head")
    ]
    strides = [
        *tokens_and_heads,
        "stride_angle_token",
        "stride_cache_head",
        "stride_cache_page",
        "stride_cache_token",
    ]
    constexprs = {
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "BLOCK_HALF": next_power_of_2(head_dim // 2),
        **ROPE.blocks,
    }
    return AotVariant(
        name=f"rope_{element[1:]}_d{head_dim}_page{block_size}",
        kernel=rope_and_store_kernel,
        signature=pointers
        | sizes
        | dict.fromkeys(strides, "i32")
        | dict.fromkeys(constexprs, "constexpr"),
        constexprs=constexprs,
        divisible=(*pointers, *strides),
        num_warps=ROPE.num_warps,
        num_stages=ROPE.num_stages,
    )
