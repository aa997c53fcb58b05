"""Forward passes that were captured once and are replayed, one for each shape of a padded step.

Knows nothing of what a step computes. A batch without adapters has a key of its own and thus a
graph without LoRA's launches: it pays nothing for them. Invariant: a graph reads its step's
values at the addresses over which it was captured, and nothing else of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device import Device, Graph
from engine.device_batch import DeviceStep
from engine.forward_batch import ForwardBatch
from engine.step_buffer import StepBuffer, num_bytes, views

MAX_GRAPHS = 256
"""Each keeps some device memory; adapters of many different ranks must not take it all."""


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: Graph[Tensor]
    memory: Tensor
    views: Sequence[Tensor]


class DecodeGraphs:
    """`forward` as graphs, captured when a shape is first met."""

    def __init__(
        self, device: Device, buffer: StepBuffer, forward: Callable[[ForwardBatch], Tensor]
    ) -> None:
        self._device = device
        self._buffer = buffer
        self._forward = forward
        self._captured: dict[Hashable, _Captured] = {}

    def run(self, step: DeviceStep) -> tuple[Tensor, Sequence[Tensor]] | None:
        """Queue a padded step: its logits, and the views of its arrays on the device.

        None for a shape that is not captured, where there are too many already.
        """
        captured = self._captured.get(step.key)
        if captured is None:
            if len(self._captured) == MAX_GRAPHS:
                return None
            captured = self._captured[step.key] = self._capture(step)
        self._buffer.upload(step.arrays, captured.memory)
        return captured.graph.replay(), captured.views

    def _capture(self, step: DeviceStep) -> _Captured:
        size = num_bytes(step.arrays)
        memory = torch.empty(size, dtype=torch.uint8, device=self._device.target)
        self._buffer.upload(step.arrays, memory)
        found = views(memory, step.arrays)
        batch = step.batch(found)
        return _Captured(self._device.capture(lambda: self._forward(batch)), memory, found)


def buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes that are captured: close together, so that little is padded."""
    sizes = [1, 2, 4, *range(8, min(max_num_seqs, 64), 8), *range(64, max_num_seqs, 16)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]
