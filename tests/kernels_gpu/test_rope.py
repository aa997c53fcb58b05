"""Rotary embedding with the write of K and V: exact, and only the named slots are touched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.gpu.rope import rope_and_store_kv
from tests.kernels_gpu.paged_batches import TOLERANCE, poisoned_caches, relative_error

NUM_PAGES = 4


@pytest.fixture(autouse=True)
def new_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Rows:
    """query [T, Hq, D], key, value [T, Hkv, D]: views of one fused tensor; cos, sin [T, D]."""

    query: Tensor
    key: Tensor
    value: Tensor
    cos: Tensor
    sin: Tensor


def make_rows(
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> Rows:
    generator = torch.Generator().manual_seed(num_tokens)
    fused = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, head_dim, generator=generator).to(
        dtype
    )
    query, key, value = fused.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    angles = torch.rand(num_tokens, head_dim, generator=generator) * 6
    return Rows(query, key, value, angles.cos().to(dtype), angles.sin().to(dtype))


def rotate(x: Tensor, rows: Rows) -> Tensor:
    x, cos, sin = x.double(), rows.cos.double()[:, None], rows.sin.double()[:, None]
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 2), (9, 3), (5, 1)])
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (80, 32), (128, 64)])
def test_keys_and_values_land_in_their_slots_and_nowhere_else(
    num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    # More tokens than one program takes, no multiple of it; the first, the last and a padding slot.
    slots = torch.tensor([3, NUM_PAGES * block_size - 1, 17, -1, 0, 40, 41, 16, 15, 8, 5])
    rows = make_rows(len(slots), num_heads, num_kv_heads, head_dim, dtype)
    key_cache, value_cache = poisoned_caches(NUM_PAGES, num_kv_heads, block_size, head_dim, dtype)
    storage = key_cache.untyped_storage()
    got = rope_and_store_kv(
        rows.query, rows.key, rows.value, rows.cos, rows.sin, key_cache, value_cache, slots
    )
    assert got.dtype == dtype
    assert relative_error(got, rotate(rows.query, rows)) <= TOLERANCE[dtype]

    stored = slots >= 0
    pages, offsets = slots[stored] // block_size, slots[stored] % block_size
    keys = key_cache[:, pages, offsets].transpose(0, 1)
    assert relative_error(keys, rotate(rows.key, rows)[stored]) <= TOLERANCE[dtype]
    values = value_cache[:, pages, offsets].transpose(0, 1)
    assert torch.equal(values, rows.value[stored])
    everything = torch.empty(0, dtype=dtype).set_(storage)
    num_written = int((~everything.isnan()).sum())
    assert num_written == 2 * int(stored.sum()) * num_kv_heads * head_dim


def test_a_row_at_another_rows_angle_would_be_noticed() -> None:
    rows = make_rows(4, 2, 1, 64, torch.float32)
    key_cache, value_cache = poisoned_caches(1, 1, 16, 64, torch.float32)
    got = rope_and_store_kv(
        rows.query,
        rows.key,
        rows.value,
        rows.cos.flip(0),
        rows.sin.flip(0),
        key_cache,
        value_cache,
        torch.arange(4),
    )
    assert relative_error(got, rotate(rows.query, rows)) > 0.1
