"""An adapter in pages of the device: made off the step loop, filled beside it.

Knows nothing of which pages are free (`engine/residency.py` gives them). Invariant: kernels read
an adapter's table and pages only after the copies into them are done; until then the host keeps
the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from engine.device import Device, Event
from kernels.adapter_table import PageFormat
from kernels.gpu.lora import PagedAdapter
from lora.layout import AdapterLayout, plan_layout
from lora.pages import build_pages, build_table, content_of
from lora.weights import LoraWeights


@dataclass(frozen=True, slots=True, eq=False)
class HostPages:
    """An adapter's pages on the host: `engine.adapter_weights.HostWeights`.

    content: [layout.num_pages, page_bytes] uint8, where `device` reads it.
    """

    layout: AdapterLayout
    content: Tensor
    dtype: torch.dtype
    pool: Tensor
    device: Device
    is_copied = True

    @property
    def num_bytes(self) -> int:
        return self.content.nbytes

    def num_pages(self, page_bytes: int) -> int:
        return self.layout.num_pages

    @torch.inference_mode()
    def install(self, pages: Sequence[int]) -> PagedWeights:
        words = build_table(self.layout, pages)
        staged = self.device.host_empty(words.nbytes).view(torch.int32)
        staged.copy_(words)
        table = torch.empty(words.shape, dtype=torch.int32, device=self.device.target)
        with self.device.copies():
            table.copy_(staged, non_blocking=True)
            for begin, end in _runs(pages):
                first = pages[begin]
                target = self.pool[first : first + end - begin]
                target.copy_(self.content[begin:end], non_blocking=True)
            filled = self.device.record()
        layout = self.layout
        adapter = PagedAdapter(self.pool, table, self.dtype, layout.format, layout.use)
        return PagedWeights(adapter, filled, self.content)


class PagedWeights:
    """`engine.adapter_weights.AdapterWeights` in pages of the device."""

    def __init__(self, adapter: PagedAdapter, filled: Event, content: Tensor) -> None:
        """content: what is copied until `filled`."""
        self.for_kernels = adapter
        self._filled = filled
        self._content: Tensor | None = content

    @property
    def is_installed(self) -> bool:
        if self._content is not None and self._filled.is_done():
            self._content = None
        return self._content is None


def prepare(
    weights: LoraWeights,
    page_format: PageFormat,
    dtype: torch.dtype,
    pool: Tensor,
    device: Device,
) -> HostPages:
    """Lay `weights` out and build their bytes. Long: for a loader's thread.

    Raises:
        ValueError: a vector of the adapter is longer than a page.
    """
    layout = plan_layout(content_of(weights, page_format.shapes), page_format)
    pin = device.target.type == "cuda"
    content = build_pages(weights, layout, dtype, pin=pin)
    return HostPages(layout, content, dtype, pool, device)


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open ranges of indices whose pages follow one another: one copy each."""
    breaks = [i for i in range(1, len(pages)) if pages[i] != pages[i - 1] + 1]
    edges = [0, *breaks, len(pages)]
    return list(pairwise(edges))
