"""Whole pages from the device to the host and back, beside the model's work.

Knows nothing of what the pages hold or why they move. Invariant: a page that is swapped out keeps
its content on the device until the copy is done; the caller frees it after that, not before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device import Device, Event
from engine.kv_cache import LayeredKVCache
from kernels.interface import KernelBackend

STAGED_BYTES = 1 << 25
"""Of the device's memory beside the pool, that one copy takes at a time."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy in the device's queue."""

    begun: Event
    ended: Event

    def is_done(self) -> bool:
        return self.ended.is_done()

    def wait(self) -> None:
        """Block this thread until it is done."""
        self.ended.wait()

    @property
    def seconds(self) -> float:
        """How long the copy itself took, once it is done."""
        return self.ended.seconds_since(self.begun)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Pages on the host, in the order in which they were asked for.

    content: [n, page_bytes] uint8; valid once `done`.
    """

    content: Tensor
    done: Transfer


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
            ids, begun = self._ids(pages), self._device.record(timed=True)
            for part in self._parts(len(pages)):
                gathered = self._ops.gather_pages(self._pool, ids[part])
                content[part].copy_(gathered, non_blocking=True)
            done = Transfer(begun, self._device.record(timed=True))
        return HostCopy(content, done)

    @torch.inference_mode()
    def swap_in(self, copy: HostCopy, pages: Sequence[int]) -> Transfer:
        """Begin to write `copy` to `pages`, which need not be the ones it came from.

        Steps may read them once the transfer is done.
        """
        assert len(pages) == copy.content.shape[0]
        assert copy.done.is_done(), "swapped in before it was out"
        with self._device.copies():
            ids, begun = self._ids(pages), self._device.record(timed=True)
            for part in self._parts(len(pages)):
                content = copy.content[part].to(self._device.target, non_blocking=True)
                self._ops.scatter_pages(self._pool, ids[part], content)
            return Transfer(begun, self._device.record(timed=True))

    def _parts(self, num_pages: int) -> Iterator[slice]:
        num_staged = max(1, STAGED_BYTES // self._pool.shape[1])
        for begin in range(0, num_pages, num_staged):
            yield slice(begin, begin + num_staged)

    def _ids(self, pages: Sequence[int]) -> Tensor:
        staged = self._device.host_empty(8 * len(pages)).view(torch.int64)
        staged.copy_(torch.tensor(pages, dtype=torch.int64))
        return staged.to(self._device.target, non_blocking=True)


@dataclass(frozen=True, slots=True)
class CompletedTransfer:
    """A copy of a host's, which is done when it returns."""

    seconds: float

    def is_done(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class LayeredCopy:
    """Pages of a `LayeredKVCache`.

    layers: K and V of each, [num_kv_heads, n, block_size, head_dim].
    """

    layers: list[tuple[Tensor, Tensor]]
    done: CompletedTransfer


class LayeredSwapper:
    """`Swapper` for the CPU's storage; it is all one memory, and the copies are done at once."""

    def __init__(self, cache: LayeredKVCache) -> None:
        self._cache = cache

    @torch.inference_mode()
    def swap_out(self, pages: Sequence[int]) -> LayeredCopy:
        begun_at = time.perf_counter()
        ids = torch.tensor(pages, dtype=torch.int64)
        layers = [
            (keys.index_select(1, ids), values.index_select(1, ids))
            for keys, values in map(self._cache.layer, range(self._cache.num_layers))
        ]
        return LayeredCopy(layers, CompletedTransfer(time.perf_counter() - begun_at))

    @torch.inference_mode()
    def swap_in(self, copy: LayeredCopy, pages: Sequence[int]) -> CompletedTransfer:
        """pages: as many as were swapped out."""
        begun_at = time.perf_counter()
        ids = torch.tensor(pages, dtype=torch.int64)
        for index, (keys, values) in enumerate(copy.layers):
            key_cache, value_cache = self._cache.layer(index)
            key_cache.index_copy_(1, ids, keys)
            value_cache.index_copy_(1, ids, values)
        return CompletedTransfer(time.perf_counter() - begun_at)
