"""Paged attention in the interpreter equals float64 and reads nothing that it should not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.gpu.attention import (
    attention_tiles,
    paged_attention,
    plan_attention,
    plan_attention_invariant,
)
from kernels.gpu.attention_plan import SplitPolicy, WorkList
from kernels.gpu.tuning import ATTENTION_MERGE
from kernels.interface import SequenceSpan
from tests.kernels_gpu.even_dot import rows_alike
from tests.kernels_gpu.paged_batches import (
    TOLERANCE,
    PagedBatch,
    cut_every,
    padded_plan,
    paged_batch,
    relative_error,
    span_work,
)

SCALE = 0.2


@pytest.fixture(autouse=True)
def new_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all() and torch.ones(1).new_empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def plan_by(batch: PagedBatch, policy: SplitPolicy) -> WorkList:
    return span_work(batch.spans, attention_tiles(batch.shape), policy)


def attend(batch: PagedBatch, work: WorkList, *, window: int = 0, soft_cap: float = 0.0) -> Tensor:
    plan = padded_plan(batch, work)
    options = {"window": window, "soft_cap": soft_cap}
    return paged_attention(batch.query, batch.key_cache, batch.value_cache, plan, SCALE, **options)


def assert_exact(batch: PagedBatch, got: Tensor, window: int = 0, soft_cap: float = 0.0) -> None:
    assert got.dtype == batch.query.dtype
    exact = batch.exact(SCALE, window, soft_cap)
    assert torch.equal(got.isnan(), exact.isnan()), "written where it should not, or not at all"
    assert relative_error(got, exact) <= TOLERANCE[batch.query.dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
# Parts of several small pages, and of two that the kernel reads whole.
@pytest.mark.parametrize(("block_size", "cut"), [(16, 64), (64, 128)])
def test_split_sequences_at_every_border_are_exact(
    block_size: int, cut: int, dtype: torch.dtype
) -> None:
    contexts = [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200]
    batch = paged_batch(
        [(1, context - 1) for context in contexts], block_size=block_size, dtype=dtype
    )
    work = plan_by(batch, cut_every(cut, 2))
    assert len(work.merges) == sum(context > cut for context in contexts)
    assert_exact(batch, attend(batch, work))


@pytest.mark.parametrize("window", [1, 17, 64])
def test_a_window_shows_its_positions_and_no_other(window: int) -> None:
    batch = paged_batch([(1, 100), (7, 70)], group=2, window=window)
    got = attend(batch, plan_by(batch, cut_every(64, 2)), window=window)
    assert_exact(batch, got, window)


def test_a_chunk_is_split_and_merged_row_by_row() -> None:
    batch = paged_batch([(40, 300), (30, 0)])
    work = plan_by(batch, cut_every(128, 2))
    assert len(work.merges) == 40 and len(work.decode) == 0
    assert_exact(batch, attend(batch, work))


def test_more_parts_than_the_merge_reads_at_once_are_exact() -> None:
    batch = paged_batch([(1, 64 * 37)], num_kv_heads=1, group=2)
    # The last parts weigh most, so that the merge has to rescale what it has.
    batch.key_cache[:, list(batch.spans[0].block_table[-8:])] *= 4
    work = plan_by(batch, cut_every(64, 1))
    assert work.merges[0, 3] > ATTENTION_MERGE.blocks["BLOCK_PARTS"]
    assert_exact(batch, attend(batch, work))


def test_the_engines_own_plan_is_exact() -> None:
    batch = paged_batch([(1, 250), (30, 10), (1, 0), (3, 90)], group=4)
    for make in (plan_attention, plan_attention_invariant):
        plan = make(batch.spans, 16)
        got = paged_attention(batch.query, batch.key_cache, batch.value_cache, plan, SCALE)
        assert_exact(batch, got)


def test_softmax_is_taken_in_float32_where_16_bits_overflow() -> None:
    batch = paged_batch([(1, 100)], dtype=torch.float16)
    batch.query[1:2] *= 40
    batch.key_cache[:, list(batch.spans[0].block_table)] *= 40
    got = paged_attention(
        batch.query, batch.key_cache, batch.value_cache, plan_attention(batch.spans, 16), 1.0
    )
    assert relative_error(got, batch.exact(1.0)) <= TOLERANCE[torch.float16]


def invariant_rows(
    dtype: torch.dtype, chunks: list[tuple[int, int]], *, neighbours: bool
) -> Tensor:
    """One sequence's outputs for `chunks`, ranges of positions from 490 on, each a step."""
    whole = paged_batch([(34, 490), (20, 80), (1, 600)], num_kv_heads=1, dtype=dtype)
    own, *others = whole.spans
    rows = []
    for begin, end in chunks:
        num_rows = end - begin
        spans = [SequenceSpan(0, num_rows, end, own.block_table)]
        query = whole.query[1 + begin - 490 : 1 + end - 490]
        if neighbours:
            spans = [
                SequenceSpan(0, 20, 100, others[0].block_table),
                SequenceSpan(20, num_rows, end, own.block_table),
                SequenceSpan(20 + num_rows, 1, 601, others[1].block_table),
            ]
            query = torch.cat([whole.query[35:55], query, whole.query[55:56]])
        plan = plan_attention_invariant(spans, 16)
        with rows_alike():
            out = paged_attention(query, whole.key_cache, whole.value_cache, plan, SCALE)
        start = spans[1 if neighbours else 0].query_start
        rows.append(out[start : start + num_rows])
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_invariant_rows_keep_their_bits_in_any_chunks_and_company(dtype: torch.dtype) -> None:
    whole = invariant_rows(dtype, [(490, 524)], neighbours=False)
    chunks = [(490, 497), (497, 511), (511, 512), (512, 513), (513, 524)]
    assert torch.equal(invariant_rows(dtype, chunks, neighbours=False), whole)
    assert torch.equal(invariant_rows(dtype, chunks, neighbours=True), whole)


def test_other_cuts_give_other_bits_so_invariance_can_fail() -> None:
    batch = paged_batch([(2, 300)], num_kv_heads=1)
    with rows_alike():
        coarse, fine = (attend(batch, plan_by(batch, cut_every(n, 1)))[1:3] for n in (128, 64))
    assert not torch.equal(coarse, fine)
    torch.testing.assert_close(coarse, fine, atol=1e-5, rtol=1e-4)


def test_an_unmasked_page_tail_would_be_noticed() -> None:
    batch = paged_batch([(1, 20)])
    span = batch.spans[0]
    longer = [SequenceSpan(span.query_start, 1, span.context_len + 1, span.block_table)]
    plan = plan_attention(longer, 16)
    got = paged_attention(batch.query, batch.key_cache, batch.value_cache, plan, SCALE)
    assert got[1].isnan().all()


lengths_strategy = st.lists(
    st.tuples(st.sampled_from([1, 1, 2, 5, 23]), st.integers(0, 220)), min_size=1, max_size=3
)


@settings(max_examples=30)
@given(
    lengths=lengths_strategy,
    heads=st.sampled_from([(1, 1), (2, 2), (2, 3), (1, 4), (1, 9), (1, 20)]),
    head_dim=st.sampled_from([64, 80, 96, 128]),
    block_size=st.sampled_from([16, 32, 64]),
    dtype=st.sampled_from(list(TOLERANCE)),
    window=st.sampled_from([0, 0, 1, 30, 100]),
    soft_cap=st.sampled_from([0.0, 0.0, 1.0, 50.0]),
    cut=st.sampled_from([0, 64, 128]),
)
def test_any_mix_of_chunks_and_decodes_is_exact(
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    window: int,
    soft_cap: float,
    cut: int,
) -> None:
    num_kv_heads, group = heads
    batch = paged_batch(
        lengths,
        num_kv_heads=num_kv_heads,
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
        window=window,
    )
    policy = cut_every(cut, num_kv_heads) if cut else SplitPolicy(12, num_kv_heads)
    got = attend(batch, plan_by(batch, policy), window=window, soft_cap=soft_cap)
    assert_exact(batch, got, window, soft_cap)
