"""A step's rows laid out, and its index tensors; the only place that builds them.

Rows are ordered by adapter (the base first), so that an adapter's rows are one slice. Knows
nothing of how layers use them. Invariant: row i of every tensor is about the same token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engine.row_failures import RowsFailedError
from engine.sampler import Draw, draw_of
from engine.sequence import Sequence as EngineSequence
from kernels.interface import KernelBackend, LoraSegment, SequenceSpan
from lora.batch import group_rows


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One forward pass over T tokens of N sequences.

    input_ids, positions, slot_mapping: [T] int64. attention_plan,
    lora: the backend's own; lora is None where every row is the base's.
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


def lay_out(
    step: Mapping[EngineSequence, int],
    weights_of: Callable[[EngineSequence], Any | None],
    block_size: int,
) -> StepLayout:
    """Lay out `step`: {sequence: number of tokens to compute from num_computed_tokens on}.

    weights_of: what the kernels read of a sequence's adapter; None for the base.

    Raises:
        RowsFailedError: some sequences cannot be laid out; the others can.
    """
    failed: dict[EngineSequence, Exception] = {}
    groups = _by_adapter(step, weights_of, failed)
    segments = group_rows((weights, sum(map(step.__getitem__, group))) for weights, group in groups)
    layout = StepLayout([], [], [], [], segments, [], [], [])
    input_ids, positions, slot_mapping = layout.input_ids, layout.positions, layout.slot_mapping
    for _, group in groups:
        for sequence in group:
            num_tokens, table = step[sequence], sequence.block_table
            start, begin = len(input_ids), sequence.num_computed_tokens
            end = begin + num_tokens
            try:
                input_ids += sequence.token_ids[begin:end]
                if num_tokens == 1:
                    positions.append(begin)
                    slot_mapping.append(
                        table[begin // block_size] * block_size + begin % block_size
                    )
                else:
                    positions += range(begin, end)
                    slot_mapping += _slots(table, begin, end, block_size)
                layout.spans.append(SequenceSpan(start, num_tokens, end, table))
                if end == len(sequence.token_ids):
                    layout.draws.append(draw_of(sequence))
                    layout.logits_rows.append(start + num_tokens - 1)
                    layout.sampling.append(sequence)
            except Exception as error:  # the edge of a row; the core logs it
                failed[sequence] = error
    if failed:
        raise RowsFailedError(failed)
    return layout


def build_forward_batch(layout: StepLayout, ops: KernelBackend, block_size: int) -> ForwardBatch:
    """The tensors of a step whose tokens are all known, on the CPU."""
    return ForwardBatch(
        input_ids=torch.tensor(layout.input_ids, dtype=torch.int64),
        positions=torch.tensor(layout.positions, dtype=torch.int64),
        slot_mapping=torch.tensor(layout.slot_mapping, dtype=torch.int64),
        attention_plan=ops.plan_attention(layout.spans, block_size),
        lora=ops.plan_lora(layout.segments) if layout.segments else None,
        logits_rows=torch.tensor(layout.logits_rows, dtype=torch.int64),
        sampling=layout.sampling,
        draws=layout.draws,
    )


def _by_adapter(
    step: Mapping[EngineSequence, int],
    weights_of: Callable[[EngineSequence], Any | None],
    failed: dict[EngineSequence, Exception],
) -> list[tuple[Any | None, list[EngineSequence]]]:
    """The sequences of the base first, then adapter by adapter, each in the step's order."""
    groups: dict[int, tuple[Any | None, list[EngineSequence]]] = {id(None): (None, [])}
    for sequence in step:
        try:
            weights = weights_of(sequence)
        except Exception as error:  # the edge of a row; the core logs it
            failed[sequence] = error
            continue
        group = groups.get(id(weights))
        if group is None:
            group = groups[id(weights)] = (weights, [])
        group[1].append(sequence)
    return list(groups.values())


def _slots(table: Sequence[int], begin: int, end: int, block_size: int) -> list[int]:
    """Where the K and V of positions [begin, end) go."""
    return [table[i // block_size] * block_size + i % block_size for i in range(begin, end)]
