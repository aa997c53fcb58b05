"""Ops that treat every row or element alone: norms, the activation, penalties on logits.

Knows nothing of layers or requests. Invariant: a row's bits are a function of that row, so these
serve the batch-invariant backend too.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import AotVariant, ceil_div, next_power_of_2, pointer_type
from kernels.gpu.tuning import PENALTIES, SILU_AND_MUL, rms_norm_config


@triton.jit
def rms_norm_kernel(
    out_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    stride_out,
    stride_x,
    stride_residual,
    num_columns,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """One row a program; the whole row is in registers between its load and its store."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_COLUMNS)
    inside = columns < num_columns
    x = tl.load(x_ptr + row * stride_x + columns, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        residual_ptrs = residual_ptr + row * stride_residual + columns
        residual = tl.load(residual_ptrs, mask=inside, other=0.0)
        # The norm sees the sum as the next layer will: rounded to the residual's dtype.
        x = (residual.to(tl.float32) + x.to(tl.float32)).to(residual.dtype)
        tl.store(residual_ptrs, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / num_columns + eps)
    normed = (wide * scale).to(x.dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + row * stride_out + columns, normed.to(x.dtype), mask=inside)


@triton.jit
def silu_and_mul_kernel(
    out_ptr, gate_up_ptr, stride_out, stride_gate_up, num_columns, BLOCK_COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inside = columns < num_columns
    gate_ptrs = gate_up_ptr + row * stride_gate_up + columns
    gate = tl.load(gate_ptrs, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptrs + num_columns, mask=inside, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    out_ptrs = out_ptr + row * stride_out + columns
    tl.store(out_ptrs, product.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def penalties_kernel(
    logits_ptr,
    output_counts_ptr,
    seen_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    stride_logits,
    stride_counts,
    stride_seen,
    num_tokens,
    BLOCK_TOKENS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    repetition = tl.load(repetition_ptr + row)
    frequency = tl.load(frequency_ptr + row)
    presence = tl.load(presence_ptr + row)
    # Most rows of a batch have none, and need not read three vocabularies to find out.
    if (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0):
        tokens = tl.program_id(1) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
        inside = tokens < num_tokens
        logit_ptrs = logits_ptr + row * stride_logits + tokens
        logits = tl.load(logit_ptrs, mask=inside, other=0.0)
        counts = tl.load(output_counts_ptr + row * stride_counts + tokens, mask=inside, other=0)
        seen = tl.load(seen_ptr + row * stride_seen + tokens, mask=inside, other=0) != 0
        repeated = tl.where(logits > 0.0, logits / repetition, logits * repetition)
        penalty = frequency * counts.to(tl.float32) + tl.where(counts > 0, presence, 0.0)
        tl.store(logit_ptrs, tl.where(seen, repeated, logits) - penalty, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch_rms_norm(x, None, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    assert residual.dtype == x.dtype and residual.stride(-1) == 1
    return _launch_rms_norm(x, residual, weight, eps)


def _launch_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    assert x.stride(-1) == 1
    num_rows, num_columns = x.shape
    out = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    block = next_power_of_2(num_columns)
    rms_norm_kernel[(num_rows,)](
        out,
        x,
        x if residual is None else residual,
        weight,
        out.stride(0),
        x.stride(0),
        0 if residual is None else residual.stride(0),
        num_columns,
        eps,
        HAS_RESIDUAL=residual is not None,
        BLOCK_COLUMNS=block,
        **rms_norm_config(block).launch_kwargs(),
    )
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    assert gate_up.stride(-1) == 1
    num_rows, num_columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, num_columns), dtype=gate_up.dtype, device=gate_up.device)
    grid = (num_rows, ceil_div(num_columns, SILU_AND_MUL.blocks["BLOCK_COLUMNS"]))
    silu_and_mul_kernel[grid](
        out,
        gate_up,
        out.stride(0),
        gate_up.stride(0),
        num_columns,
        **SILU_AND_MUL.launch_kwargs(),
    )
    return out


def apply_penalties(
    logits: Tensor,
    output_counts: Tensor,
    seen: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    assert logits.dtype == torch.float32
    assert all(matrix.stride(-1) == 1 for matrix in (logits, output_counts, seen))
    num_rows, num_tokens = logits.shape
    grid = (num_rows, ceil_div(num_tokens, PENALTIES.blocks["BLOCK_TOKENS"]))
    penalties_kernel[grid](
        logits,
        output_counts,
        seen,
        repetition,
        frequency,
        presence,
        logits.stride(0),
        output_counts.stride(0),
        seen.stride(0),
        num_tokens,
        **PENALTIES.launch_kwargs(),
    )


def aot_variants() -> list[AotVariant]:
    """Llama-3-8B's rows in bfloat16, and a small float32 model's whose size is no power of two."""
    variants = []
    for dtype, hidden, residual in [
        (torch.bfloat16, 4096, False),
        (torch.bfloat16, 4096, True),
        (torch.float32, 576, True),
    ]:
        variants.append(_rms_norm_variant(dtype, hidden, has_residual=residual))
    variants += [_silu_variant(dtype) for dtype in (torch.bfloat16, torch.float32)]
    return [*variants, _penalties_variant()]


def _rms_norm_variant(dtype: torch.dtype, hidden: int, *, has_residual: bool) -> AotVariant:
    pointer, block = pointer_type(dtype), next_power_of_2(hidden)
    config = rms_norm_config(block)
    op = "add_rms_norm" if has_residual else "rms_norm"
    signature = dict.fromkeys(("out_ptr", "x_ptr", "residual_ptr", "weight_ptr"), pointer)
    strides = ("stride_out", "stride_x", "stride_residual", "num_columns")
    signature |= dict.fromkeys(strides, "i32")
    return AotVariant(
        name=f"{op}_{pointer[1:]}_h{hidden}",
        kernel=rms_norm_kernel,
        signature=signature
        | {"eps": "fp32", "HAS_RESIDUAL": "constexpr", "BLOCK_COLUMNS": "constexpr"},
        constexprs={"HAS_RESIDUAL": has_residual, "BLOCK_COLUMNS": block},
        divisible=("out_ptr", "x_ptr", "residual_ptr", "weight_ptr", *strides),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


def _silu_variant(dtype: torch.dtype) -> AotVariant:
    pointer = pointer_type(dtype)
    return AotVariant(
        name=f"silu_and_mul_{pointer[1:]}",
        kernel=silu_and_mul_kernel,
        signature={
            "out_ptr": pointer,
            "gate_up_ptr": pointer,
            "stride_out": "i32",
            "stride_gate_up": "i32",
            "num_columns": "i32",
            "BLOCK_COLUMNS": "constexpr",
        },
        constexprs=dict(SILU_AND_MUL.blocks),
        divisible=("out_ptr", "gate_up_ptr", "stride_out", "stride_gate_up", "num_columns"),
        num_warps=SILU_AND_MUL.num_warps,
        num_stages=SILU_AND_MUL.num_stages,
    )


def _penalties_variant() -> AotVariant:
    pointers = {"logits_ptr": "*fp32", "output_counts_ptr": "*i32", "seen_ptr": "*i1"}
    rates = dict.fromkeys(("repetition_ptr", "frequency_ptr", "presence_ptr"), "*fp32")
    sizes = dict.fromkeys(("stride_logits", "stride_counts", "stride_seen", "num_tokens"), "i32")
    return AotVariant(
        name="apply_penalties",
        kernel=penalties_kernel,
        signature=pointers | rates | sizes | {"BLOCK_TOKENS": "constexpr"},
        constexprs=dict(PENALTIES.blocks),
        divisible=(*pointers, *rates, *sizes),
        num_warps=PENALTIES.num_warps,
        num_stages=PENALTIES.num_stages,
    )
