"""bfloat16 in the interpreter is PyTorch's bfloat16, bit for bit."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.kernels_gpu import bfloat16_shim

BLOCK = 1 << 16


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, x.to(y_ptr.dtype.element_ty), mask=at < n)


@triton.jit
def cut_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, x.to(tl.bfloat16, fp_downcast_rounding="rtz"))


@triton.jit
def bits_kernel(x_ptr, bits_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    bits = tl.load(x_ptr + at).to(tl.int16, bitcast=True)
    tl.store(bits_ptr + at, bits)
    tl.store(y_ptr + at, bits.to(tl.bfloat16, bitcast=True))


@triton.jit
def arithmetic_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr, OP: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    if OP == "add":
        out = x + y
    elif OP == "sub":
        out = x - y
    elif OP == "mul":
        out = x * y
    elif OP == "neg":
        out = -x
    elif OP == "abs":
        out = tl.abs(x)
    elif OP == "where":
        out = tl.where(x > y, x, y * 2)
    elif OP == "constant":
        out = tl.full([BLOCK], 1.1, tl.bfloat16) + tl.zeros_like(x)
    elif OP == "sum":
        out = tl.zeros_like(x) + tl.sum(x.to(tl.float32), axis=0).to(tl.bfloat16)
    elif OP == "max":
        out = tl.zeros_like(x) + tl.max(x, axis=0).to(tl.bfloat16)
    else:
        out = tl.trans(tl.reshape(x, [2, BLOCK // 2])).reshape([BLOCK])
    tl.store(out_ptr + at, out)


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    cells = at[:, None] * SIZE + at[None, :]
    a = tl.load(a_ptr + cells)
    b = tl.load(b_ptr + cells)
    tl.store(out_ptr + cells, tl.dot(a, b).to(out_ptr.dtype.element_ty))


@triton.jit
def atomic_kernel(x_ptr):
    tl.atomic_add(x_ptr, tl.full([], 1.0, tl.bfloat16))


def every_bfloat16() -> Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def hard_floats() -> Tensor:
    """Around every bfloat16 number: the number, just off it, the tie, and just off the tie."""
    high = every_bfloat16().view(torch.int16).to(torch.int32) << 16
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    return (high[:, None] | low[None, :]).reshape(-1).view(torch.float32)


def convert(x: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.full(x.shape, 7, dtype=dtype)
    for start in range(0, x.numel(), BLOCK):
        part = slice(start, start + BLOCK)
        copy_kernel[(1,)](x[part], out[part], x[part].numel(), BLOCK=BLOCK)
    return out


def assert_same_numbers(actual: Tensor, expected: Tensor) -> None:
    """Equal bits, except that any NaN is as good as another."""
    assert actual.dtype == expected.dtype
    nan = expected.isnan()
    assert torch.equal(actual.isnan(), nan)
    integer = torch.int16 if expected.element_size() == 2 else torch.int32
    assert torch.equal(actual[~nan].view(integer), expected[~nan].view(integer))


def test_rounding_is_to_nearest_even_for_ties_nan_infinity_and_subnormals() -> None:
    x = hard_floats()
    assert_same_numbers(convert(x, torch.bfloat16), x.to(torch.bfloat16))


def test_widening_is_exact_for_every_bfloat16() -> None:
    x = every_bfloat16()
    assert_same_numbers(convert(x, torch.float32), x.to(torch.float32))


def test_a_copy_keeps_the_bits_of_every_bfloat16_and_of_every_nan() -> None:
    x = every_bfloat16()
    assert torch.equal(convert(x, torch.bfloat16).view(torch.int16), x.view(torch.int16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_casts_between_bfloat16_and_other_floats_are_those_of_torch(dtype: torch.dtype) -> None:
    x = every_bfloat16()
    assert torch.equal(convert(x, dtype).nan_to_num(0.5), x.to(dtype).nan_to_num(0.5))
    other = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert_same_numbers(convert(other, torch.bfloat16), other.to(torch.bfloat16))


def test_casts_between_bfloat16_and_integers_are_those_of_torch() -> None:
    whole = torch.arange(-30000, 30000, dtype=torch.int32)
    assert_same_numbers(convert(whole, torch.bfloat16), whole.to(torch.bfloat16))
    x = torch.linspace(-300, 300, 5000).to(torch.bfloat16)
    assert torch.equal(convert(x, torch.int32), x.to(torch.int32))


def test_rounding_towards_zero_where_a_kernel_asks_for_it() -> None:
    x = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))
    out = torch.zeros(BLOCK, dtype=torch.bfloat16)
    cut_kernel[(1,)](x, out, BLOCK=BLOCK)
    cut = (x.view(torch.int32) & -(1 << 16)).view(torch.float32)
    assert torch.equal(out.to(torch.float32), cut)


def test_a_bitcast_sees_the_sixteen_bits() -> None:
    x = every_bfloat16()
    bits = torch.zeros(BLOCK, dtype=torch.int16)
    back = torch.zeros(BLOCK, dtype=torch.bfloat16)
    bits_kernel[(1,)](x, bits, back, BLOCK=BLOCK)
    assert torch.equal(bits, x.view(torch.int16))
    assert torch.equal(back.view(torch.int16), x.view(torch.int16))


def run_arithmetic(op: str, x: Tensor, y: Tensor) -> Tensor:
    out = torch.full_like(x, float("nan"))
    arithmetic_kernel[(1,)](x, y, out, BLOCK=x.numel(), OP=op)
    return out


def pairs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, generator=generator) * torch.logspace(-6, 6, 4096)
    y = torch.randn(4096, generator=generator) * torch.logspace(-3, 5, 4096)
    return x.to(torch.bfloat16), y.to(torch.bfloat16)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "neg", "abs", "where", "constant", "max"])
def test_arithmetic_rounds_each_operation_like_torch(op: str) -> None:
    x, y = pairs()
    expected = {
        "add": x + y,
        "sub": x - y,
        "mul": x * y,
        "neg": -x,
        "abs": x.abs(),
        "where": torch.where(x > y, x, y * 2),
        "constant": torch.full_like(x, 1.1),
        "max": torch.full_like(x, x.max().item()),
    }[op]
    assert_same_numbers(run_arithmetic(op, x, y), expected)


def test_reductions_and_layouts_keep_the_numbers() -> None:
    x = torch.arange(64).to(torch.bfloat16)
    assert_same_numbers(run_arithmetic("sum", x, x), torch.full_like(x, 2016.0))
    expected = x.reshape(2, 32).t().reshape(-1)
    assert_same_numbers(run_arithmetic("turn", x, x), expected.contiguous())


def relative_error(dtype: torch.dtype) -> float:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator).to(torch.bfloat16) for _ in range(2))
    out = torch.full((64, 64), float("nan"), dtype=dtype)
    dot_kernel[(1,)](a, b, out, SIZE=64)
    exact = a.double() @ b.double()
    return ((out.double() - exact).abs().max() / exact.abs().max()).item()


def test_dot_multiplies_bfloat16_and_sums_in_float32() -> None:
    assert relative_error(torch.float32) < 1e-6
    assert relative_error(torch.bfloat16) < 4e-3


def test_what_the_shim_does_not_cover_is_refused() -> None:
    with pytest.raises(Exception, match="does not cover atomics"):
        atomic_kernel[(1,)](torch.zeros(1, dtype=torch.bfloat16))


def test_control_the_interpreter_without_the_shim_is_wrong() -> None:
    x = hard_floats()[:BLOCK]
    with bfloat16_shim.removed():
        assert not relative_error(torch.float32) < 1.0
        cut = convert(x, torch.bfloat16)
    right = x.to(torch.bfloat16)
    assert not torch.equal(cut.nan_to_num(0.5), right.nan_to_num(0.5))
    assert_same_numbers(convert(x, torch.bfloat16), right)
