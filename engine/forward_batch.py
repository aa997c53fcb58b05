"""Index tensors of one step; the only place that builds them.

Rows are ordered by adapter (the base first), so that an adapter's rows are one slice. Knows
nothing of how layers use them. Invariant: row i of every tensor is about the same token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.sequence import Sequence as EngineSequence
from kernels.interface import KernelBackend, SequenceSpan
from lora.batch import group_rows
from lora.weights import LoraWeights


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


def build_forward_batch(
    step: Mapping[EngineSequence, int],
    weights_of: Callable[[EngineSequence], LoraWeights | None],
    ops: KernelBackend,
    block_size: int,
) -> ForwardBatch:
    """Lay out `step`: {sequence: number of tokens to compute from num_computed_tokens on}."""
    weights = {sequence: weights_of(sequence) for sequence in step}
    ordered = sorted(step, key=lambda sequence: _adapter_order(sequence, weights[sequence]))
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[SequenceSpan] = []
    logits_rows: list[int] = []
    sampling: list[EngineSequence] = []
    for sequence in ordered:
        begin = sequence.num_computed_tokens
        end = begin + step[sequence]
        spans.append(SequenceSpan(len(input_ids), end - begin, end, sequence.block_table))
        input_ids += sequence.token_ids[begin:end]
        positions += range(begin, end)
        table = sequence.block_table
        slots += [table[i // block_size] * block_size + i % block_size for i in range(begin, end)]
        if end == sequence.num_tokens:
            logits_rows.append(len(input_ids) - 1)
            sampling.append(sequence)
    segments = group_rows((weights[sequence], step[sequence]) for sequence in ordered)
    return ForwardBatch(
        input_ids=torch.tensor(input_ids, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        attention_plan=ops.plan_attention(spans, block_size),
        lora=ops.plan_lora(segments) if segments else None,
        logits_rows=torch.tensor(logits_rows, dtype=torch.int64),
        sampling=sampling,
    )


def _adapter_order(sequence: EngineSequence, weights: LoraWeights | None) -> tuple[int, int]:
    """The base first, then adapter by adapter; within one, by arrival."""
    return (0 if weights is None else id(weights), sequence.arrival)
