"""An adapter in pages of the device: made off the step loop, filled beside it.

Knows nothing of which pages are free (`engine/residency.py` gives them). Invariant: kernels read
an adapter's table and pages only after the copies into them are done; until then the host keeps
the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from engine.device import Device, Event
from kernels.adapter_table import PageFormat
from kernels.gpu.lora import PagedAdapter
from lora.layout import AdapterLayout, plan_layout
from lora.pages import build_pages, build_table, content_of
from lora.weights import LoraWeights


class PagedWeights:
    """`engine.residency.AdapterWeights` for a pool of device pages [P, page_bytes] uint8."""

    def __init__(
        self,
        layout: AdapterLayout,
        content: Tensor,
        dtype: torch.dtype,
        pool: Tensor,
        device: Device,
    ) -> None:
        """content: [layout.num_pages, page_bytes] uint8 on the host, where `device` reads it."""
        self._layout = layout
        self._dtype = dtype
        self._content: Tensor | None = content
        self._pool = pool
        self._device = device
        self._adapter: PagedAdapter | None = None
        self._filled: Event | None = None

    @property
    def for_kernels(self) -> PagedAdapter:
        assert self._adapter is not None, "it has no pages"
        return self._adapter

    def num_pages(self, page_bytes: int) -> int:
        return self._layout.num_pages

    @property
    def is_installed(self) -> bool:
        if self._filled is None or not self._filled.is_done():
            return False
        self._content = None
        return True

    @torch.inference_mode()
    def install(self, pages: Sequence[int]) -> None:
        assert self._content is not None and self._filled is None, "an adapter is installed once"
        words = build_table(self._layout, pages)
        staged = self._device.host_empty(words.nbytes).view(torch.int32)
        staged.copy_(words)
        table = torch.empty(words.shape, dtype=torch.int32, device=self._device.target)
        with self._device.copies():
            table.copy_(staged, non_blocking=True)
            for begin, end in _runs(pages):
                first = pages[begin]
                target = self._pool[first : first + end - begin]
                target.copy_(self._content[begin:end], non_blocking=True)
            self._filled = self._device.record()
        layout = self._layout
        self._adapter = PagedAdapter(self._pool, table, self._dtype, layout.format, layout.use)


def prepare(
    weights: LoraWeights,
    page_format: PageFormat,
    dtype: torch.dtype,
    pool: Tensor,
    device: Device,
) -> PagedWeights:
    """Lay `weights` out and build their bytes. Long: for a loader's thread.

    Raises:
        ValueError: a vector of the adapter is longer than a page.
    """
    layout = plan_layout(content_of(weights, page_format.shapes), page_format)
    pin = device.target.type == "cuda"
    content = build_pages(weights, layout, dtype, pin=pin)
    return PagedWeights(layout, content, dtype, pool, device)


def _runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open ranges of indices whose pages follow one another: one copy each."""
    breaks = [i for i in range(1, len(pages)) if pages[i] != pages[i - 1] + 1]
    edges = [0, *breaks, len(pages)]
    return list(pairwise(edges))
