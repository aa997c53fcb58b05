"""Steps as arrays: what shares a graph, what must not, and what padding leaves alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.device_batch import BatchPlanner, DeviceStep, is_decode
from engine.forward_batch import StepLayout, lay_out
from engine.graphs import buckets
from engine.sequence import Sequence
from engine.step_buffer import views
from kernels.adapter_table import AdapterUse, PageFormat
from kernels.gpu.attention import HeadShape
from kernels.gpu.lora import PagedAdapter
from tests.builders.engines import make_request

BLOCK_SIZE = 8
POOL = torch.zeros((4, 4096), dtype=torch.uint8)
FORMAT = PageFormat({}, 4096, 4)


@dataclass(frozen=True)
class Installed:
    for_kernels: PagedAdapter
    is_installed: bool = True


def planner(*, batch_invariant: bool = False) -> BatchPlanner:
    return BatchPlanner(
        HeadShape(4, 2, 4),
        torch.device("cpu"),
        block_size=BLOCK_SIZE,
        max_num_blocks=128,
        batch_invariant=batch_invariant,
    )


def adapter(rank: int, *, head_rows: int = 0) -> PagedAdapter:
    rows = {"lm_head": head_rows} if head_rows else {}
    use = AdapterUse({"self_attn.qkv_proj": rank}, frozenset(), frozenset(), rows)
    return PagedAdapter(POOL, torch.zeros(8, dtype=torch.int32), torch.float32, FORMAT, use)


def decode_layout(contexts: list[int], ranks: list[int | None], head_rows: int = 0) -> StepLayout:
    """One decoding sequence for each context length; rank None: the base's."""
    adapters = [None if rank is None else adapter(rank, head_rows=head_rows) for rank in ranks]
    step = {}
    for number, (context, own) in enumerate(zip(contexts, adapters, strict=True)):
        sequence = Sequence(make_request(f"r{number}", [3] * context), number)
        sequence.num_computed_tokens = context - 1
        sequence.block_table = list(range(number, number + context // BLOCK_SIZE + 1))
        sequence.weights = Installed(own) if own is not None else None
        step[sequence] = 1
    return lay_out(step, BLOCK_SIZE)


def padded(
    contexts: list[int], ranks: list[int | None], bucket: int, head_rows: int = 0
) -> DeviceStep:
    layout = decode_layout(contexts, ranks, head_rows)
    assert is_decode(layout)
    return planner().plan_padded(layout, bucket)


contexts = st.lists(st.integers(1, 1000), min_size=1, max_size=6)


@given(contexts, contexts)
def test_all_decode_steps_of_a_bucket_share_a_graph(first: list[int], second: list[int]) -> None:
    keys = {padded(each, [None] * len(each), 8).key for each in (first, second)}
    assert len(keys) == 1


@given(contexts, st.lists(st.integers(17, 32), min_size=6, max_size=6))
def test_adapters_of_like_rank_share_a_graph(lengths: list[int], ranks: list[int]) -> None:
    first = padded(lengths, ranks[: len(lengths)], 8)
    assert first.key == padded([5], [20], 8).key


def test_adapters_that_change_the_head_have_graphs_of_their_own_and_share_them() -> None:
    plain, first, second = (padded([9, 30], [None, 16], 4, rows) for rows in (0, 3, 4))
    assert plain.head is None and first.head == first.lora
    assert first.key == second.key != plain.key
    batches = [
        step.batch(views(torch.zeros(1 << 20, dtype=torch.uint8), step.arrays))
        for step in (plain, first)
    ]
    assert batches[0].head_forms is None and batches[1].head_forms is batches[1].lora


def test_the_head_has_a_plan_over_the_rows_that_sample() -> None:
    layout = decode_layout([9, 30, 12], [None, 16, 8], head_rows=3)
    prompt = Sequence(make_request("prompt", [3] * 10), 9)
    prompt.block_table = [0, 1]
    prompt.weights = Installed(adapter(4, head_rows=3))
    layout = lay_out(dict.fromkeys(layout.sampling, 1) | {prompt: 10}, BLOCK_SIZE)
    step = planner().plan(layout)
    batch = step.batch(views(torch.zeros(1 << 20, dtype=torch.uint8), step.arrays))
    arrays = step.arrays[-3:]  # all are greedy: no arrays of sampling follow
    assert batch.head_forms is not None and batch.head_forms is not batch.lora
    assert arrays[0][:2, : arrays[2][0]].tolist() == [[1, 2, 3], [1, 1, 1]]


def test_a_batch_without_adapters_has_a_graph_without_lora() -> None:
    base, mixed = padded([9, 30], [None, None], 4), padded([9, 30], [None, 16], 4)
    assert base.lora is None and mixed.lora is not None
    assert base.key != mixed.key
    assert base.batch(views(torch.zeros(1 << 20, dtype=torch.uint8), base.arrays)).lora is None


def test_what_changes_a_launch_changes_the_key() -> None:
    keys = {
        padded([9], [None], 4).key,
        padded([9], [None], 8).key,
        padded([9], [16], 4).key,
        padded([9], [64], 4).key,
        planner(batch_invariant=True).plan_padded(decode_layout([9], [None]), 4).key,
    }
    assert len(keys) == 5


@given(contexts)
def test_rows_that_pad_a_step_store_nothing_and_attend_to_nothing(lengths: list[int]) -> None:
    layout = decode_layout(lengths, [None] * len(lengths))
    step = planner().plan_padded(layout, 8)
    input_ids, positions, slots, _, decode, _, _, counts, tables = step.arrays[:9]
    real = len(lengths)
    assert input_ids[:real].tolist() == layout.input_ids
    assert positions[:real].tolist() == layout.positions
    assert slots.tolist() == layout.slot_mapping + [-1] * (8 - real)
    assert decode[: counts[0], 0].max() < real
    assert (tables[real:] == -1).all()
    for row, span in zip(tables, layout.spans, strict=False):
        num_blocks = -(-span.context_len // BLOCK_SIZE)
        assert row[:num_blocks].tolist() == list(span.block_table)[:num_blocks]
        assert (row[num_blocks:] == -1).all()


def test_a_prompt_or_an_unfinished_chunk_is_no_decode_step() -> None:
    sequence = Sequence(make_request("r", [3] * 10), 1)
    sequence.block_table = [0, 1]
    assert not is_decode(lay_out({sequence: 10}, BLOCK_SIZE))
    assert not is_decode(lay_out({sequence: 1}, BLOCK_SIZE))
    sequence.num_computed_tokens = 9
    assert is_decode(lay_out({sequence: 1}, BLOCK_SIZE))


@given(st.integers(1, 300))
def test_every_batch_has_a_bucket_that_pads_it_little(max_num_seqs: int) -> None:
    sizes = buckets(max_num_seqs)
    assert sizes == sorted(set(sizes)) and sizes[-1] == max_num_seqs
    steps = np.diff([0, *sizes])
    assert all(step <= max(size // 2, 8) for step, size in zip(steps, sizes, strict=True))
