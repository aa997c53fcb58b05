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

from engine.sequence import Sequence as EngineSequence
from kernels.interface import KernelBackend, LoraSegment, SequenceSpan
from lora.batch import group_rows


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One forward pass over T tokens of N sequences.

    input_ids, positions, slot_mapping: [T] int64. attention_plan,
    lora: the backend's own; lora is None where every row is the base's.
    logits_rows: [M] int64, the last row of each sequence that samples; `sampling` in that order.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    attention_plan: Any
    lora: Any | None
    logits_rows: Tensor
    sampling: Sequence[EngineSequence]

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


def lay_out(
    step: Mapping[EngineSequence, int],
    weights_of: Callable[[EngineSequence], Any | None],
    block_size: int,
) -> StepLayout:
    """Lay out `step`: {sequence: number of tokens to compute from num_computed_tokens on}.

    weights_of: what the kernels read of a sequence's adapter; None for the base.
    """
    weights = {sequence: weights_of(sequence) for sequence in step}
    ordered = sorted(step, key=lambda sequence: _adapter_order(sequence, weights[sequence]))
    segments = group_rows((weights[sequence], step[sequence]) for sequence in ordered)
    layout = StepLayout([], [], [], [], segments, [], [])
    for sequence in ordered:
        begin = sequence.num_computed_tokens
        end = begin + step[sequence]
        table = sequence.block_table
        layout.spans.append(SequenceSpan(len(layout.input_ids), end - begin, end, table))
        layout.input_ids.extend(sequence.token_ids[begin:end])
        layout.positions.extend(range(begin, end))
        layout.slot_mapping.extend(
            table[i // block_size] * block_size + i % block_size for i in range(begin, end)
        )
        if end == sequence.num_tokens:
            layout.logits_rows.append(len(layout.input_ids) - 1)
            layout.sampling.append(sequence)
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
    )


def _adapter_order(sequence: EngineSequence, weights: Any | None) -> tuple[int, int]:
    """The base first, then adapter by adapter; within one, by arrival."""
    return (0 if weights is None else id(weights), sequence.arrival)
