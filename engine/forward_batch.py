"""A step's rows laid out, and its index tensors; the only place that builds them.

Rows are ordered by adapter (the base first), so that an adapter's rows are one slice. Knows
nothing of how layers use them. Invariant: row i of every tensor is about the same token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engine.row_failures import RowsFailedError
from engine.sampler import GREEDY, Draw, draw_of
from engine.sequence import Sequence as EngineSequence
from kernels.interface import KernelBackend, LoraSegment, SequenceSpan
from lora.batch import group_rows


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One forward pass over T tokens of N sequences.

    input_ids, positions, slot_mapping: [T] int64. attention_plan, lora, row_forms, head_forms:
    the backend's own; the last three as `lora.layer.Batch` has them.
    logits_rows: [M] int64, the last row of each sequence that samples; `sampling` and
    `draws` in that order.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    attention_plan: Any
    lora: Any | None
    logits_rows: Tensor
    sampling: Sequence[EngineSequence]
    draws: Sequence[Draw]
    row_forms: Any | None = None
    head_forms: Any | None = None

    def with_ids(self, input_ids: Tensor) -> ForwardBatch:
        return replace(self, input_ids=input_ids)


@dataclass(frozen=True, slots=True)
class StepLayout:
    """One step's rows as plain numbers; no tensors yet. Row i of every list is the same token.

    An id below 0 is a placeholder: `-1 - row` of the ids that the step before samples.
    """

    input_ids: list[int]
    positions: list[int]
    slot_mapping: list[int]
    spans: list[SequenceSpan]
    segments: list[LoraSegment]
    logits_rows: list[int]
    sampling: list[EngineSequence]
    draws: list[Draw]


def lay_out(step: Mapping[EngineSequence, int], block_size: int) -> StepLayout:
    """Lay out `step`: {sequence: number of tokens to compute from num_computed_tokens on}.

    The base's rows come first, then adapter by adapter; among one's, in the order of `step`.

    Raises:
        RowsFailedError: some sequences cannot be laid out; the others can.
    """
    failed: dict[EngineSequence, Exception] = {}
    layout = StepLayout([], [], [], [], [], [], [], [])
    input_ids, positions, slot_mapping = layout.input_ids, layout.positions, layout.slot_mapping
    spans, draws = layout.spans, layout.draws
    owners = []
    for weights, group in _by_adapter(step, failed):
        first = len(input_ids)
        for sequence in group:
            num_tokens, table, token_ids = step[sequence], sequence.block_table, sequence.token_ids
            start, begin = len(input_ids), sequence.num_computed_tokens
            end = begin + num_tokens
            try:
                input_ids += token_ids[begin:end]
                if num_tokens == 1:
                    positions.append(begin)
                    slot_mapping.append(
                        table[begin // block_size] * block_size + begin % block_size
                    )
                else:
                    positions += range(begin, end)
                    slot_mapping += _slots(table, begin, end, block_size)
                spans.append(SequenceSpan(start, num_tokens, end, table))
                if end == len(token_ids):
                    draws.append(GREEDY if sequence.is_greedy else draw_of(sequence))
                    layout.logits_rows.append(start + num_tokens - 1)
                    layout.sampling.append(sequence)
            except Exception as error:  # the edge of a row; the core logs it
                failed[sequence] = error
        owners.append((weights, len(input_ids) - first))
    if failed:
        raise RowsFailedError(failed)
    layout.segments.extend(group_rows(owners))
    return layout


def build_forward_batch(layout: StepLayout, ops: KernelBackend, block_size: int) -> ForwardBatch:
    """The tensors of a step whose tokens are all known, on the CPU."""
    with_forms = [each for each in layout.segments if each.weights.has_row_forms]
    at_head = [each for each in with_forms if each.weights.is_at_head]
    head_segments = sampling_segments(at_head, layout.logits_rows)
    return ForwardBatch(
        input_ids=torch.tensor(layout.input_ids, dtype=torch.int64),
        positions=torch.tensor(layout.positions, dtype=torch.int64),
        slot_mapping=torch.tensor(layout.slot_mapping, dtype=torch.int64),
        attention_plan=ops.plan_attention(layout.spans, block_size),
        lora=ops.plan_lora(layout.segments) if layout.segments else None,
        logits_rows=torch.tensor(layout.logits_rows, dtype=torch.int64),
        sampling=layout.sampling,
        draws=layout.draws,
        row_forms=ops.plan_lora(with_forms) if with_forms else None,
        head_forms=ops.plan_lora(head_segments) if head_segments else None,
    )


def sampling_segments(
    segments: Iterable[LoraSegment], logits_rows: Sequence[int]
) -> list[LoraSegment]:
    """The same over the rows that sample, counted among themselves; none where none samples."""
    found = []
    for each in segments:
        start, end = (bisect_left(logits_rows, row) for row in (each.start, each.end))
        if start < end:
            found.append(LoraSegment(start, end, each.weights))
    return found


def _by_adapter(
    step: Iterable[EngineSequence], failed: dict[EngineSequence, Exception]
) -> Iterator[tuple[Any | None, list[EngineSequence]]]:
    """What the kernels read of each adapter, None for the base, and the sequences that have it."""
    base: list[EngineSequence] = []
    groups: dict[int, list[EngineSequence]] = {id(None): base}
    for sequence in step:
        group = groups.get(id(sequence.weights))
        if group is None:
            group = groups[id(sequence.weights)] = []
        group.append(sequence)
    yield None, base
    for group in list(groups.values())[1:]:
        weights = group[0].weights
        assert weights is not None
        try:
            for_kernels = weights.for_kernels
        except Exception as error:  # the edge of these rows; the core logs it
            failed |= dict.fromkeys(group, error)
        else:
            yield for_kernels, group


def _slots(table: Sequence[int], begin: int, end: int, block_size: int) -> list[int]:
    """Where the K and V of positions [begin, end) go."""
    return [table[i // block_size] * block_size + i % block_size for i in range(begin, end)]
