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
    parts = sorted(_prepare_all(step, weights_of, block_size), key=lambda part: part.order)
    segments = group_rows((part.weights, len(part.input_ids)) for part in parts)
    layout = StepLayout([], [], [], [], segments, [], [], [])
    for part in parts:
        layout.spans.append(
            SequenceSpan(
                len(layout.input_ids),
                len(part.input_ids),
                part.positions.stop,
                part.sequence.block_table,
            )
        )
        layout.input_ids.extend(part.input_ids)
        layout.positions.extend(part.positions)
        layout.slot_mapping.extend(part.slot_mapping)
        if part.draw is not None:
            layout.logits_rows.append(len(layout.input_ids) - 1)
            layout.sampling.append(part.sequence)
            layout.draws.append(part.draw)
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


@dataclass(frozen=True, slots=True)
class _Part:
    """One sequence's rows. draw: None where it does not sample in this step."""

    sequence: EngineSequence
    weights: Any | None
    input_ids: list[int]
    positions: range
    slot_mapping: list[int]
    draw: Draw | None

    @property
    def order(self) -> tuple[int, int]:
        """The base first, then adapter by adapter; within one, by arrival."""
        return (0 if self.weights is None else id(self.weights), self.sequence.arrival)


def _prepare_all(
    step: Mapping[EngineSequence, int],
    weights_of: Callable[[EngineSequence], Any | None],
    block_size: int,
) -> list[_Part]:
    parts: list[_Part] = []
    failed: dict[EngineSequence, Exception] = {}
    for sequence, num_tokens in step.items():
        try:
            parts.append(_prepare(sequence, num_tokens, weights_of(sequence), block_size))
        except Exception as error:  # the edge of a row; the core logs it
            failed[sequence] = error
    if failed:
        raise RowsFailedError(failed)
    return parts


def _prepare(
    sequence: EngineSequence, num_tokens: int, weights: Any | None, block_size: int
) -> _Part:
    begin = sequence.num_computed_tokens
    end = begin + num_tokens
    table = sequence.block_table
    return _Part(
        sequence,
        weights,
        sequence.token_ids[begin:end],
        range(begin, end),
        [table[i // block_size] * block_size + i % block_size for i in range(begin, end)],
        draw_of(sequence) if end == sequence.num_tokens else None,
    )
