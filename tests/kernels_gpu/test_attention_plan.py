"""The work list covers every pair of query and key once, and nobody in it works much longer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu.attention_plan import (
    GRANULE,
    SplitPolicy,
    Tiles,
    WorkList,
    block_table_rows,
    decode_capacity,
    plan_work,
)

TILES = Tiles(decode=4, prefill=16)
# An H200's 132 multiprocessors with two programs each, and Llama-3-8B's KV heads.
H200 = SplitPolicy(num_programs=264, num_kv_heads=8)
POLICIES = {
    "whole": SplitPolicy(1, 8),
    "some": SplitPolicy(60, 8),
    "many": SplitPolicy(5000, 8),
    "fixed": SplitPolicy(264, 8, fixed_length=128),
}

Lengths = Sequence[tuple[int, int]]


def plan(lengths: Lengths, policy: SplitPolicy, tiles: Tiles = TILES) -> WorkList:
    """`lengths`: (tokens in this step, tokens before it); rows lie one after another."""
    num_tokens = np.array([num for num, _ in lengths], dtype=np.int32)
    context_len = np.array([num + past for num, past in lengths], dtype=np.int32)
    query_start = (np.cumsum(num_tokens) - num_tokens).astype(np.int32)
    return plan_work(query_start, num_tokens, context_len, tiles, policy)


def work_per_program(work: WorkList) -> np.ndarray:
    return work.decode[:, 5] - work.decode[:, 4]


def imbalance(work: WorkList) -> float:
    lengths = work_per_program(work)
    return float(lengths.max() / lengths.mean())


lengths_strategy = st.lists(
    st.tuples(st.sampled_from([1, 1, 3, 5, 16, 40]), st.integers(0, 700)), min_size=1, max_size=6
)


@settings(max_examples=80)
@given(
    lengths=lengths_strategy,
    policy=st.sampled_from(sorted(POLICIES)),
    decode=st.sampled_from([0, 1, 4]),
)
def test_every_token_meets_every_position_exactly_once(
    lengths: list[tuple[int, int]], policy: str, decode: int
) -> None:
    work = plan(lengths, POLICIES[policy], Tiles(decode, 16))
    assert work.counts.tolist() == [len(work.decode), len(work.prefill), len(work.merges), 0]
    num_rows = sum(num for num, _ in lengths)
    met = np.zeros((num_rows, max(num + past for num, past in lengths)), dtype=int)
    position_of = np.concatenate([np.arange(past, past + num) for num, past in lengths])
    owner = np.repeat(np.arange(len(lengths)), [num for num, _ in lengths])
    for items, tile in ((work.decode, decode), (work.prefill, 16)):
        for sequence, row, rows, position, begin, end, _, _ in items.tolist():
            assert 0 < rows <= tile and begin % GRANULE == 0 and begin < end
            assert (owner[row : row + rows] == sequence).all()
            assert position_of[row] == position
            met[row : row + rows, begin:end] += 1
    for row, position in enumerate(position_of):
        assert (met[row, : position + 1] == 1).all()


@settings(max_examples=80)
@given(lengths=lengths_strategy, policy=st.sampled_from(sorted(POLICIES)))
def test_what_was_split_is_merged_from_its_own_parts_in_order(
    lengths: list[tuple[int, int]], policy: str
) -> None:
    work = plan(lengths, POLICIES[policy])
    items = np.concatenate([work.decode, work.prefill]).tolist()
    parts: dict[int, list[tuple[int, int]]] = {}
    whole: set[int] = set()
    for _, row, rows, _, begin, _, partial, _ in items:
        for offset in range(rows):
            if partial < 0:
                whole.add(row + offset)
            else:
                parts.setdefault(row + offset, []).append((begin, partial + offset))
    merges = {row: (first, step, num) for row, first, step, num in work.merges.tolist()}
    assert set(merges) == set(parts) and not whole & set(parts)
    used: list[int] = []
    for row, (first, step, num) in merges.items():
        rows_in_order = [partial for _, partial in sorted(parts[row])]
        assert rows_in_order == [first + part * step for part in range(num)]
        used += rows_in_order
    assert sorted(used) == list(range(work.num_partial_rows))


def test_one_long_sequence_beside_many_short_ones_is_cut_to_their_length() -> None:
    lengths = [(1, 1023)] * 63 + [(1, 32767)]
    work = plan(lengths, H200)
    assert imbalance(work) <= 1.2
    # Only the long one was cut.
    assert len(work.merges) == 1 and len(work.decode) == 63 + work.merges[0, 3]
    assert imbalance(plan(lengths, POLICIES["whole"])) > 20


@pytest.mark.parametrize("context", [500, 1024, 4096, 8192, 32768])
@pytest.mark.parametrize("num_sequences", [1, 2, 8, 32, 64, 256])
def test_uniform_batches_are_balanced_and_fill_the_device(num_sequences: int, context: int) -> None:
    work = plan([(1, context - 1)] * num_sequences, H200)
    assert imbalance(work) <= 1.2
    programs_at_work = len(work.decode) * H200.num_kv_heads
    assert programs_at_work >= 0.6 * H200.num_programs or len(work.decode) >= context / 128


def test_a_batch_that_fills_the_device_is_not_cut() -> None:
    for num_sequences in (33, 64, 256):
        assert not len(plan([(1, 1023)] * num_sequences, H200).merges)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.just(1), st.integers(0, 40_000)), min_size=1, max_size=70),
    fixed_length=st.sampled_from([0, 512]),
)
def test_a_captured_graph_has_room_for_any_decode_batch(
    lengths: list[tuple[int, int]], fixed_length: int
) -> None:
    policy = SplitPolicy(264, 8, fixed_length)
    work = plan(lengths, policy, Tiles(1, 16))
    capacity = decode_capacity(len(lengths), 40_001, policy)
    assert len(work.decode) <= capacity.num_items
    assert len(work.merges) <= capacity.num_merges
    assert work.num_partial_rows <= capacity.num_partial_rows


def test_fixed_cuts_depend_on_the_position_alone() -> None:
    policy = SplitPolicy(264, 8, fixed_length=128)
    cuts = set(plan([(1, 499)], policy).decode[:, 4].tolist())
    assert cuts == {0, 128, 256, 384}
    beside = plan([(1, 99)] * 40 + [(30, 470)], policy)
    assert set(beside.prefill[:, 4].tolist()) == cuts


def test_block_tables_end_in_an_id_that_no_page_has() -> None:
    rows = block_table_rows([[5, 6, 7], [8]])
    assert rows.dtype == np.int32 and rows.shape[1] % 16 == 0
    assert rows[0, :4].tolist() == [5, 6, 7, -1] and rows[1, :2].tolist() == [8, -1]
