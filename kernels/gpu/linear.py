"""Linear layers of the base: cuBLAS's, and one of fixed tiles for the batch-invariant backend.

Knows nothing of layers or adapters. cuBLAS chooses a kernel by the number of rows, so a row's last
bits depend on how many share its batch. Invariant of `tile_linear`: a row's bits are a function of
that row and the weight, because every row is summed over k in the same order by the same
instructions, in a tile of the same shape.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.gpu.launch import AotVariant, ceil_div, pointer_type
from kernels.gpu.tuning import TILE_LINEAR


@triton.jit
def tile_linear_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    stride_out,
    stride_x,
    stride_weight,
    num_rows,
    num_out,
    num_in,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Tiles that share a block of the weight are neighbours in the grid, and find it in L2."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    outs = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    is_row = rows < num_rows
    is_out = outs < num_out
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * stride_x + inner[None, :]
    weight_ptrs = weight_ptr + outs.to(tl.int64)[None, :] * stride_weight + inner[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, num_in, BLOCK_K):
        is_inner = start + inner < num_in
        x = tl.load(x_ptrs + start, mask=is_row[:, None] & is_inner[None, :], other=0.0)
        weight = tl.load(weight_ptrs + start, mask=is_inner[:, None] & is_out[None, :], other=0.0)
        total = tl.dot(x, weight, total, input_precision="ieee")
    if HAS_BIAS:
        bias = tl.load(bias_ptr + outs, mask=is_out, other=0.0)
        total += bias.to(tl.float32)[None, :]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * stride_out + outs[None, :]
    mask = is_row[:, None] & is_out[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=mask)


def pack_linear(weight: Tensor) -> Tensor:
    return weight.contiguous()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, weight, bias)


def tile_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    assert x.stride(-1) == 1 and weight.stride(-1) == 1
    num_rows, num_in = x.shape
    num_out = weight.shape[0]
    config = TILE_LINEAR[x.element_size()]
    out = torch.empty((num_rows, num_out), dtype=x.dtype, device=x.device)
    grid = (
        ceil_div(num_rows, config.blocks["BLOCK_M"]),
        ceil_div(num_out, config.blocks["BLOCK_N"]),
    )
    tile_linear_kernel[grid](
        out,
        x,
        weight,
        weight if bias is None else bias,
        out.stride(0),
        x.stride(0),
        weight.stride(0),
        num_rows,
        num_out,
        num_in,
        HAS_BIAS=bias is not None,
        **config.launch_kwargs(),
    )
    return out


def aot_variants() -> list[AotVariant]:
    return [_variant(torch.bfloat16), _variant(torch.float32)]


def _variant(dtype: torch.dtype) -> AotVariant:
    config = TILE_LINEAR[dtype.itemsize]
    pointers = {
        name: pointer_type(dtype) for name in ("out_ptr", "x_ptr", "weight_ptr", "bias_ptr")
    }
    strides = ("stride_out", "stride_x", "stride_weight")
    sizes = ("num_rows", "num_out", "num_in")
    constants = ("HAS_BIAS", *config.blocks)
    return AotVariant(
        name=f"tile_linear_{pointer_type(dtype)[1:]}",
        kernel=tile_linear_kernel,
        signature=pointers
        | dict.fromkeys((*strides, *sizes), "i32")
        | dict.fromkeys(constants, "constexpr"),
        constexprs={"HAS_BIAS": False, **config.blocks},
        divisible=(*pointers, *strides, "num_out", "num_in"),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        wants_dot=dtype != torch.float32,
    )
