"""The linear of fixed tiles: exact in every dtype, and a row's bits are its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kernels import gpu
from kernels.gpu.linear import tile_linear, tile_linear_kernel
from tests.kernels_gpu.even_dot import rows_alike

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 5e-3}


@pytest.fixture(autouse=True)
def uninitialized_memory_is_poisoned() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def random_matrix(num_rows: int, num_columns: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Rows between poison: a view whose neighbours in memory are NaN."""
    generator = torch.Generator().manual_seed(seed)
    memory = torch.full((num_rows, num_columns + 5), torch.nan, dtype=dtype)
    matrix = memory[:, :num_columns]
    matrix.copy_(torch.randn(num_rows, num_columns, generator=generator))
    return matrix


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("num_rows", "num_in", "num_out"), [(1, 64, 64), (3, 100, 130), (67, 33, 65), (5, 576, 96)]
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_is_exact_whatever_the_blocks_leave_over(
    num_rows: int, num_in: int, num_out: int, has_bias: bool, dtype: torch.dtype
) -> None:
    x = random_matrix(num_rows, num_in, dtype, seed=1)
    weight = random_matrix(num_out, num_in, dtype, seed=2)
    bias = random_matrix(1, num_out, dtype, seed=3)[0] * 4 if has_bias else None
    exact = x.double() @ weight.double().t()
    exact += 0 if bias is None else bias.double()
    for got in (tile_linear(x, weight, bias), gpu.linear(x, gpu.pack_linear(weight), bias)):
        assert got.dtype == dtype
        error = (got.double() - exact).abs().max() / exact.abs().max()
        assert error <= TOLERANCE[dtype]


def is_independent(linear: Callable[..., Tensor], dtype: torch.dtype) -> bool:
    """Whether rows have the same bits alone, in a batch, and at another place in it."""
    rows = random_matrix(70, 200, dtype, seed=1)
    weight = random_matrix(64, 200, dtype, seed=2)
    with rows_alike():
        together = linear(rows, weight, None)
        moved = linear(rows.roll(5, 0), weight, None).roll(-5, 0)
        few = [slice(0, 1), slice(33, 34), slice(60, 70)]
        alone = [torch.equal(linear(rows[some], weight, None), together[some]) for some in few]
    return torch.equal(moved, together) and all(alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_are_bitwise_independent_of_the_batch(dtype: torch.dtype) -> None:
    assert is_independent(tile_linear, dtype)


def test_a_batch_of_nan_leaves_a_row_its_bits() -> None:
    rows = random_matrix(70, 200, torch.float32, seed=1)
    weight = random_matrix(96, 200, torch.float32, seed=2)
    spoiled = torch.full_like(rows, torch.nan)
    spoiled[33] = rows[33]
    assert torch.equal(tile_linear(spoiled, weight, None)[33], tile_linear(rows, weight, None)[33])


def test_a_tile_chosen_by_the_batch_would_be_noticed() -> None:
    def linear(x: Tensor, weight: Tensor, bias: None) -> Tensor:
        out = torch.empty(x.shape[0], weight.shape[0])
        strides = (out.stride(0), x.stride(0), weight.stride(0))
        block_k = 64 if x.shape[0] < 16 else 128
        tile_linear_kernel[(2, 1)](
            out, x, weight, weight, *strides, x.shape[0], weight.shape[0], x.shape[1],
            HAS_BIAS=False, BLOCK_M=64, BLOCK_N=64, BLOCK_K=block_k,
        )  # fmt: skip
        return out

    assert not is_independent(linear, torch.float32)
