"""Norms, activation and penalties in the interpreter, against float64, between poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels import gpu, reference
from kernels.gpu.pointwise import rms_norm_kernel, silu_and_mul_kernel

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 5e-3}
EPS = 1e-5
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
# A power of two, one past it, what is no multiple of 16, SmolLM2's hidden size.
every_size = pytest.mark.parametrize("num_columns", [64, 65, 100, 576])


@pytest.fixture(autouse=True)
def uninitialized_memory_is_poisoned() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    assert torch.empty(2).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def random_rows(num_rows: int, num_columns: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows between poison: a view whose neighbours in memory are NaN."""
    generator = torch.Generator().manual_seed(seed)
    memory = torch.full((num_rows, num_columns + 9), torch.nan, dtype=dtype)
    rows = memory[:, :num_columns]
    rows.copy_(torch.randn(num_rows, num_columns, generator=generator) * 3)
    return rows


def relative_error(got: Tensor, want: Tensor) -> float:
    """The largest error, as a share of the largest value; NaN where anything is NaN."""
    return float((got.double() - want).abs().max() / want.abs().max())


def exact_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    rows = x.double()
    return weight.double() * rows / (rows.square().mean(dim=-1, keepdim=True) + EPS).sqrt()


@every_dtype
@every_size
def test_rms_norm_is_exact(num_columns: int, dtype: torch.dtype) -> None:
    x = random_rows(3, num_columns, dtype)
    weight = random_rows(1, num_columns, dtype, seed=1)[0]
    got = gpu.rms_norm(x, weight, EPS)
    assert got.dtype == dtype
    assert relative_error(got, exact_rms_norm(x, weight)) <= TOLERANCE[dtype]


@every_dtype
@every_size
def test_add_rms_norm_adds_in_place_and_norms_the_rounded_sum(
    num_columns: int, dtype: torch.dtype
) -> None:
    x, residual = random_rows(3, num_columns, dtype), random_rows(3, num_columns, dtype, seed=2)
    weight = random_rows(1, num_columns, dtype, seed=1)[0]
    total = x + residual
    got = gpu.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(residual, total)
    assert relative_error(got, exact_rms_norm(total, weight)) <= TOLERANCE[dtype]
    assert torch.equal(got, gpu.rms_norm(total, weight, EPS)), "one launch or two: the same bits"


@every_dtype
@pytest.mark.parametrize("num_columns", [1, 96, 1000, 2049])
def test_silu_and_mul_is_exact(num_columns: int, dtype: torch.dtype) -> None:
    gate_up = random_rows(3, 2 * num_columns, dtype)
    gate_up[0, 0] = -200  # exp overflows
    gate, up = gate_up.double().chunk(2, dim=-1)
    got = gpu.silu_and_mul(gate_up)
    assert got.dtype == dtype
    want = gate * torch.sigmoid(gate) * up
    assert relative_error(got, want) <= TOLERANCE[dtype]


def test_the_tolerance_notices_another_eps_weight_or_activation() -> None:
    x, weight = random_rows(3, 100, torch.bfloat16), random_rows(1, 100, torch.bfloat16, seed=1)[0]
    worst = TOLERANCE[torch.bfloat16]
    assert relative_error(gpu.rms_norm(x, weight, 0.1), exact_rms_norm(x, weight)) > worst
    assert relative_error(gpu.rms_norm(x, weight.flip(0), EPS), exact_rms_norm(x, weight)) > worst
    gate, up = x.double().chunk(2, dim=-1)
    gelu = torch.nn.functional.gelu(gate) * up
    assert relative_error(gpu.silu_and_mul(x), gelu) > worst


def test_nothing_is_written_beside_a_row() -> None:
    x = random_rows(3, 100, torch.float32)
    norms, products = (torch.full((3, 160), torch.nan) for _ in range(2))
    strides = (norms.stride(0), x.stride(0), 0)
    rms_norm_kernel[(3,)](norms, x, x, x, *strides, 100, EPS, HAS_RESIDUAL=False, BLOCK_COLUMNS=128)
    silu_and_mul_kernel[(3, 1)](products, x, norms.stride(0), x.stride(0), 50, BLOCK_COLUMNS=64)
    for out, num_columns in ((norms, 100), (products, 50)):
        assert out[:, :num_columns].isfinite().all()
        assert out[:, num_columns:].isnan().all()


def penalty_inputs(num_tokens: int) -> tuple[Tensor, ...]:
    """Four rows: no penalty at all, then one kind each. Memory beside the rows is poison."""
    generator = torch.Generator().manual_seed(4)
    logits = random_rows(4, num_tokens, torch.float32)
    logits[:, 0] = -torch.inf
    counts = torch.full((4, num_tokens + 9), 10**6, dtype=torch.int32)[:, :num_tokens]
    counts.copy_(torch.randint(0, 4, (4, num_tokens), generator=generator))
    seen = torch.ones((4, num_tokens + 9), dtype=torch.bool)[:, :num_tokens]
    seen.copy_((counts > 0) | (torch.rand(4, num_tokens, generator=generator) < 0.3))
    rates = torch.tensor([[1.0, 1.3, 1.0, 0.7], [0.0, 0.0, 0.5, -1.5], [0.0, 0.0, 0.0, 0.25]])
    return logits, counts, seen, *rates


@pytest.mark.parametrize("num_tokens", [1, 100, 8200 // 2 + 1])
def test_penalties_equal_reference(num_tokens: int) -> None:
    logits, *others = penalty_inputs(num_tokens)
    got, want = logits.clone(), logits[:, :300].clone()
    gpu.apply_penalties(got, *others)
    reference.apply_penalties(want, *(each[:, :300] for each in others[:2]), *others[2:])
    torch.testing.assert_close(got[:, :300], want)
    assert torch.equal(got[0], logits[0])


def test_penalties_reach_the_last_token_and_not_past_it() -> None:
    logits, *others = penalty_inputs(4097)
    memory = logits.as_strided((4, 4097 + 9), (4097 + 9, 1))
    before = logits.clone()
    others[1][:] = True
    gpu.apply_penalties(logits, *others)
    assert (logits[1:3, -1] != before[1:3, -1]).any()
    assert memory[:, 4097:].isnan().all()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rows = random_rows(7, 576, torch.float32)
    weight = random_rows(1, 576, torch.float32, seed=1)[0]
    spoiled = rows.clone()
    spoiled[[0, 1, 2, 4, 5, 6]] = torch.nan
    for op in (lambda x: gpu.rms_norm(x, weight, EPS), gpu.silu_and_mul):
        together = op(rows)
        assert torch.equal(op(rows[3:4]), together[3:4])
        assert torch.equal(op(spoiled)[3], together[3])
        assert not torch.equal(op(rows.flip(0))[2], together[2])
