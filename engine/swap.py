"""Whole pages from the device to the host and back, beside the model's work.

Knows nothing of what the pages hold or why they move. Invariant: a page that is swapped out keeps
its content on the device until the copy is done; the caller frees it after that, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device import Device, Event
from kernels.interface import KernelBackend


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Pages on the host, in the order in which they were asked for.

    content: [n, page_bytes] uint8; valid once `done`.
    """

    content: Tensor
    done: Event


class Swapper:
    """Moves pages of one pool [P, page_bytes] uint8."""

    def __init__(self, pool: Tensor, device: Device, ops: KernelBackend) -> None:
        self._pool = pool
        self._device = device
        self._ops = ops

    @torch.inference_mode()
    def swap_out(self, pages: Sequence[int]) -> HostCopy:
        """Begin to copy `pages` to the host, as the steps queued so far leave them."""
        page_bytes = self._pool.shape[1]
        content = self._device.host_empty(len(pages) * page_bytes).view(len(pages), page_bytes)
        with self._device.copies():
            gathered = self._ops.gather_pages(self._pool, self._ids(pages))
            content.copy_(gathered, non_blocking=True)
            done = self._device.record()
        return HostCopy(content, done)

    @torch.inference_mode()
    def swap_in(self, copy: HostCopy, pages: Sequence[int]) -> Event:
        """Begin to write `copy` to `pages`, which need not be the ones it came from.

        Steps may read them once the event is done.
        """
        assert len(pages) == copy.content.shape[0]
        assert copy.done.is_done(), "swapped in before it was out"
        with self._device.copies():
            content = copy.content.to(self._device.target, non_blocking=True)
            self._ops.scatter_pages(self._pool, self._ids(pages), content)
            return self._device.record()

    def _ids(self, pages: Sequence[int]) -> Tensor:
        staged = self._device.host_empty(8 * len(pages)).view(torch.int64)
        staged.copy_(torch.tensor(pages, dtype=torch.int64))
        return staged.to(self._device.target, non_blocking=True)
