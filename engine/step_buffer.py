"""A step's index arrays, side by side in pinned memory: one copy carries them to the device.

Knows nothing of what the arrays mean. Invariant: arrays of the same shapes and dtypes, in the same
order, lie at the same offsets; so a graph that was captured over a buffer's views finds the next
step's values there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.device import Device, Event

ALIGNMENT_BYTES = 128
"""Kernels load 16 bytes at a time; a view never shares a cache line with another."""

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class _Slot:
    host: Tensor
    in_use: Event | None = None


class StepBuffer:
    """Host sides of the last `depth` steps, so that one can be filled while another is copied."""

    def __init__(self, device: Device, depth: int = 2, num_bytes: int = 1 << 16) -> None:
        self._device = device
        self._slots = [_Slot(device.host_empty(num_bytes)) for _ in range(depth)]

    def upload(self, arrays: Sequence[Array], target: Tensor | None = None) -> Tensor:
        """Queue one copy of `arrays` to `target`, or to new memory; returns where they went.

        target: [n] uint8 on the device, n at least `num_bytes(arrays)`; read it with `views`.
        """
        size = num_bytes(arrays)
        host = self._next_slot(size)
        fill(host, arrays)
        if target is None:
            target = torch.empty(size, dtype=torch.uint8, device=self._device.target)
        target[:size].copy_(host[:size], non_blocking=True)
        self._slots[-1].in_use = self._device.record()
        return target

    def _next_slot(self, size: int) -> Tensor:
        """The slot that was filled longest ago, once its copy is done; now the last in line."""
        slot = self._slots.pop(0)
        self._slots.append(slot)
        if slot.in_use is not None:
            slot.in_use.wait()
        if slot.host.shape[0] < size:
            slot.host = self._device.host_empty(2 * size)
        return slot.host


def fill(host: Tensor, arrays: Sequence[Array]) -> None:
    """Write `arrays` into `host` [n] uint8, each at its offset."""
    memory, begin = host.numpy(), 0
    for array in arrays:
        end = begin + array.nbytes
        memory[begin:end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        begin = _align(end)


def views(target: Tensor, arrays: Sequence[Array]) -> list[Tensor]:
    """`arrays` as tensors over `target` [n] uint8, where `upload` put them."""
    found, begin = [], 0
    for array in arrays:
        end = begin + array.nbytes
        dtype = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
        found.append(target[begin:end].view(dtype).view(array.shape))
        begin = _align(end)
    return found


def num_bytes(arrays: Sequence[Array]) -> int:
    """Bytes that `arrays` take side by side; never 0."""
    return max(ALIGNMENT_BYTES, sum(_align(array.nbytes) for array in arrays))


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
