"""Every op of the CPU backends equals the reference, on the shapes that break kernels."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.backends import choose_backend
from kernels.interface import KernelBackend, LoraPart, LoraSegment, LoraSite, SequenceSpan
from tests.builders.lora_segments import SITE, segment

REFERENCE = choose_backend("reference")
BACKENDS = {
    "cpu": choose_backend("cpu"),
    "invariant": choose_backend("cpu", batch_invariant=True),
}
POPULARITY = {
    "distinct": [0, 1, 2, 3, 4, 5, 6],
    "identical": [0, 0, 0, 0, 0, 0, 0],
    "skewed": [0, 0, 0, 0, 1, 2, 3],
    "base_between": [None, 0, None, 1, 1, None, 2],
    "base_only": [None, None, None],
    "one_row": [3],
}
RANKS = [1, 3, 8, 10, 16, 100, 512]


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> KernelBackend:
    return BACKENDS[request.param]


def make_site(rank: int, num_in: int, outs: list[int], generator: torch.Generator) -> LoraSite:
    parts, out_begin = [], 0
    for index, num_out in enumerate(outs):
        b = torch.randn(rank, num_out, generator=generator).t()
        parts.append(
            LoraPart(b, (index * rank, (index + 1) * rank), (out_begin, out_begin + num_out))
        )
        out_begin += num_out
    a = torch.randn(rank * len(outs), num_in, generator=generator)
    return LoraSite(a, tuple(parts))


def make_segments(owners: list[int | None], sites: list[LoraSite]) -> list[LoraSegment]:
    return [
        segment(row, row + 1, sites[owner]) for row, owner in enumerate(owners) if owner is not None
    ]


@pytest.mark.parametrize("popularity", sorted(POPULARITY))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_add_lora_equals_reference(
    backend: KernelBackend, popularity: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(7)
    sites = [make_site(rank, 96, [64, 32, 32], generator) for rank in RANKS]
    owners = POPULARITY[popularity]
    segments = make_segments(owners, sites)
    x = torch.randn(len(owners), 96, generator=generator).to(dtype)
    base = torch.randn(len(owners), 128, generator=generator).to(dtype)
    got, want = base.clone(), base.clone()
    backend.add_lora(got, x, backend.plan_lora(segments), SITE)
    REFERENCE.add_lora(want, x, REFERENCE.plan_lora(segments), SITE)
    scale = want.abs().max().item()
    assert (got - want).abs().max().item() <= scale * (1e-5 if dtype == torch.float32 else 1e-2)
    for row, owner in enumerate(owners):
        if owner is None:
            assert torch.equal(got[row], base[row])


def test_add_lora_with_another_adapters_weights_is_noticed(backend: KernelBackend) -> None:
    generator = torch.Generator().manual_seed(7)
    sites = [make_site(8, 96, [128], generator) for _ in range(2)]
    x = torch.randn(2, 96, generator=generator)
    got, want = torch.zeros(2, 128), torch.zeros(2, 128)
    backend.add_lora(got, x, backend.plan_lora(make_segments([0, 1], sites)), SITE)
    REFERENCE.add_lora(want, x, REFERENCE.plan_lora(make_segments([1, 0], sites)), SITE)
    assert (got - want).abs().max().item() > 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 2, 15, 16, 17, 33])
def test_linear_norm_and_activation_equal_reference(
    backend: KernelBackend, num_rows: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, 96, generator=generator).to(dtype)
    weight = torch.randn(130, 96, generator=generator).to(dtype)
    bias = torch.randn(130, generator=generator).to(dtype)
    gain = torch.randn(96, generator=generator).to(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 0.3
    pairs = [
        (
            backend.linear(x, backend.pack_linear(weight), bias),
            REFERENCE.linear(x, weight, bias),
        ),
        (backend.linear(x, backend.pack_linear(weight), None), REFERENCE.linear(x, weight, None)),
        (backend.rms_norm(x, gain, 1e-5), REFERENCE.rms_norm(x, gain, 1e-5)),
        (
            backend.add_rms_norm(x.flip(0), got_sum := x.clone(), gain, 1e-5),
            REFERENCE.add_rms_norm(x.flip(0), want_sum := x.clone(), gain, 1e-5),
        ),
        (got_sum, want_sum),
        (backend.silu_and_mul(x), REFERENCE.silu_and_mul(x)),
    ]
    for got, want in pairs:
        assert got.dtype == dtype
        torch.testing.assert_close(got.float(), want.float(), atol=tolerance, rtol=2e-2)


spans_strategy = st.lists(
    st.tuples(st.just(1) | st.integers(1, 70), st.integers(0, 300)), min_size=1, max_size=5
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shapes=spans_strategy,
    group=st.sampled_from([1, 2, 3]),
    block_size=st.sampled_from([8, 16]),
    window=st.sampled_from([0, 0, 1, 20, 100]),
    soft_cap=st.sampled_from([0.0, 0.0, 0.5, 30.0]),
    name=st.sampled_from(sorted(BACKENDS)),
)
def test_paged_attention_equals_reference_on_poisoned_pages(
    shapes: list[tuple[int, int]],
    group: int,
    block_size: int,
    window: int,
    soft_cap: float,
    name: str,
) -> None:
    backend = BACKENDS[name]
    generator = torch.Generator().manual_seed(3)
    num_kv_heads, head_dim = 2, 16
    blocks = [-(-(num_tokens + past) // block_size) for num_tokens, past in shapes]
    num_pages = sum(blocks) + 3
    free = list(range(num_pages))
    random.Random(5).shuffle(free)
    shape = (num_kv_heads, num_pages, block_size, head_dim)
    key_cache = torch.full(shape, torch.nan)
    value_cache = torch.full(shape, torch.nan)
    spans, query_start = [], 0
    for (num_tokens, past), num_blocks in zip(shapes, blocks, strict=True):
        table = [free.pop() for _ in range(num_blocks)]
        slots = [
            table[i // block_size] * block_size + i % block_size for i in range(num_tokens + past)
        ]
        for cache in (key_cache, value_cache):
            rows = torch.randn(num_kv_heads, len(slots), head_dim, generator=generator)
            cache.flatten(1, 2)[:, slots] = rows
        spans.append(SequenceSpan(query_start, num_tokens, num_tokens + past, table))
        query_start += num_tokens
        if window:  # pages that lie before every token's window may have been recycled too
            for page in table[: max(0, past - window + 1) // block_size]:
                key_cache[:, page], value_cache[:, page] = torch.nan, torch.nan
    query = torch.randn(query_start, num_kv_heads * group, head_dim, generator=generator)
    got, want = (
        ops.paged_attention(
            query,
            key_cache,
            value_cache,
            ops.plan_attention(spans, block_size),
            0.25,
            window=window,
            soft_cap=soft_cap,
        )
        for ops in (backend, REFERENCE)
    )
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("num_past", [100, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoding_equals_reference_in_every_dtype_and_length(
    backend: KernelBackend, num_past: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(3)
    num_blocks = -(-(num_past + 1) // 16)
    caches = torch.randn(2, 2, num_blocks, 16, 16, generator=generator).to(dtype)
    query = torch.randn(2, 4, 16, generator=generator).to(dtype)
    table = list(range(num_blocks))
    spans = [SequenceSpan(0, 1, num_past + 1, table), SequenceSpan(1, 1, 7, table)]
    got, want = (
        ops.paged_attention(query, caches[0], caches[1], ops.plan_attention(spans, 16), 0.25)
        for ops in (backend, REFERENCE)
    )
    assert got.dtype == dtype
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("option", [{"window": 20}, {"soft_cap": 1.0}])
def test_window_and_soft_cap_change_the_result(
    backend: KernelBackend, option: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, 4, 16, generator=generator)
    caches = torch.randn(2, 2, 4, 16, 16, generator=generator)
    plan = backend.plan_attention([SequenceSpan(0, 2, 60, [0, 1, 2, 3])], 16)
    plain = backend.paged_attention(query, caches[0], caches[1], plan, 1.0)
    assert not torch.allclose(
        backend.paged_attention(query, caches[0], caches[1], plan, 1.0, **option), plain, atol=1e-2
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_pages_are_gathered_and_scattered_whole(backend: KernelBackend, dtype: torch.dtype) -> None:
    pool = torch.arange(6 * 40).view(6, 5, 8).to(dtype)
    pages = torch.tensor([4, 0, 5])
    before = pool.clone()
    content = backend.gather_pages(pool, pages)
    assert torch.equal(content, REFERENCE.gather_pages(pool, pages))
    assert torch.equal(content, torch.stack([before[4], before[0], before[5]]))
    backend.scatter_pages(pool, torch.tensor([1, 2, 3]), content)
    assert torch.equal(pool[[1, 2, 3]], content)
    assert torch.equal(pool[[0, 4, 5]], before[[0, 4, 5]])


def test_rope_and_store_equals_reference_and_touches_only_its_slots(
    backend: KernelBackend,
) -> None:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(5, 6, 16, generator=generator)
    key, value = (torch.randn(5, 2, 16, generator=generator) for _ in range(2))
    angle = torch.rand(5, 16, generator=generator)
    slots = torch.tensor([3, 40, 17, 63, 0])
    caches = [torch.zeros(2, 4, 16, 16) for _ in range(4)]
    got = backend.rope_and_store_kv(
        query, key, value, angle.cos(), angle.sin(), caches[0], caches[1], slots
    )
    want = REFERENCE.rope_and_store_kv(
        query, key, value, angle.cos(), angle.sin(), caches[2], caches[3], slots
    )
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(caches[0], caches[2])
    torch.testing.assert_close(caches[1], caches[3])
    untouched = sorted(set(range(64)) - set(slots.tolist()))
    assert caches[0].flatten(1, 2)[:, untouched].abs().max().item() == 0
