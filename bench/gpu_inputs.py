"""Random inputs at a base's shapes: the pool with its KV pages and adapters, spans, segments.

Knows no kernel. Invariants: no two owners share a page; page ids are in no order, as after an
hour of service; unless asked otherwise the pool holds random numbers and never zeros.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from bench.gpu_timing import compute_device, compute_dtype
from bench.roofline import BLOCK_SIZE
from engine.kv_cache import CacheShape, PagedKVCache
from kernels.gpu.lora import PagedAdapter
from kernels.interface import LoraSegment, SequenceSpan
from lora.base_spec import BaseSpec
from lora.layout import AdapterLayout, page_format, plan_layout, uniform_content
from lora.pages import build_pages, build_table
from lora.weights import LoraWeights

PAGE_ALIGNMENT_BYTES = 4096
POOL_SCALE = 0.05
"""Of all numbers in the pool: small enough for adapters, so that 32 layers of them stay finite."""
FILL_BYTES = 1 << 30


class Pool:
    """Pages for KV and adapters of one base on one device."""

    def __init__(
        self,
        base: BaseSpec,
        num_pages: int,
        *,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        self.base = base
        self.block_size = block_size
        self.dtype = dtype
        shape = CacheShape(base.num_layers, base.num_kv_heads, block_size, base.head_dim, dtype)
        page_bytes = pool_page_bytes(base, block_size, dtype)
        self.cache = PagedKVCache(shape, num_pages, page_bytes, device)
        self._num_pages = num_pages
        self.format = page_format(base, page_bytes, dtype.itemsize)
        self._rng = random.Random(seed)
        self.take_back_all()

    def fill(self) -> None:
        """Random numbers everywhere, in stretches that need little memory beside the pool."""
        numbers = self.cache.pages.view(-1).view(self.dtype)
        for stretch in torch.split(numbers, FILL_BYTES // self.dtype.itemsize):
            stretch.normal_(std=POOL_SCALE)

    def poison(self) -> None:
        self.cache.poison()

    def take(self, num_pages: int) -> list[int]:
        assert num_pages <= len(self._free), "the bench's pool is too small"
        return [self._free.pop() for _ in range(num_pages)]

    def take_back_all(self) -> None:
        """No page has an owner any more; what is in them stays."""
        self._free = list(range(self._num_pages))
        self._rng.shuffle(self._free)
        self.num_adapter_bytes = 0
        """What the vectors of all its adapters hold: what a step with all of them reads."""

    def spans(self, work: Sequence[tuple[int, int]]) -> list[SequenceSpan]:
        """One span for each (tokens in the step, context length), one after another."""
        spans, row = [], 0
        for num_tokens, context_len in work:
            blocks = self.take(-(-context_len // self.block_size))
            spans.append(SequenceSpan(row, num_tokens, context_len, blocks))
            row += num_tokens
        return spans

    def random_adapter(self, modules: Sequence[str], rank: int) -> PagedAdapter:
        """An adapter of whatever numbers its pages hold: nothing is copied."""
        layout = plan_layout(uniform_content(self.base, modules, rank), self.format)
        return self._adapter(layout, self.take(layout.num_pages))

    def install(self, weights: LoraWeights, layout: AdapterLayout) -> PagedAdapter:
        """An adapter with these weights."""
        page_ids = self.take(layout.num_pages)
        content = build_pages(weights, layout, self.dtype)
        self.cache.pages[torch.tensor(page_ids, device=self.device)] = content.to(self.device)
        return self._adapter(layout, page_ids)

    @property
    def device(self) -> torch.device:
        return self.cache.pages.device

    def _adapter(self, layout: AdapterLayout, page_ids: Sequence[int]) -> PagedAdapter:
        self.num_adapter_bytes += layout.num_bytes
        table = build_table(layout, page_ids).to(self.device)
        return PagedAdapter(
            pool=self.cache.pages,
            table=table,
            dtype=self.dtype,
            format=layout.format,
            use=layout.use,
        )


def pool_for(
    base: BaseSpec,
    num_tokens: int,
    adapters: Sequence[tuple[Sequence[str], int]],
    *,
    dry: bool,
    block_size: int = BLOCK_SIZE,
) -> Pool:
    """Room for KV of `num_tokens` in whole blocks, and for adapters (modules, rank)."""
    compute, where = compute_dtype(dry=dry), compute_device(dry=dry)
    page_bytes = pool_page_bytes(base, block_size, compute)
    pages = page_format(base, page_bytes, compute.itemsize)
    sizes = {
        each: plan_layout(uniform_content(base, *each), pages).num_pages
        for each in {(tuple(modules), rank) for modules, rank in adapters}
    }
    num_pages = sum(sizes[tuple(modules), rank] for modules, rank in adapters)
    num_pages += -(-num_tokens // block_size)
    return Pool(base, num_pages, block_size=block_size, dtype=compute, device=where)


def pool_page_bytes(base: BaseSpec, block_size: int, dtype: torch.dtype) -> int:
    """K and V of a block for all layers, rounded up as the engine does."""
    token_bytes = 2 * base.num_layers * base.num_kv_heads * base.head_dim * dtype.itemsize
    return -(-token_bytes * block_size // PAGE_ALIGNMENT_BYTES) * PAGE_ALIGNMENT_BYTES


def one_row_each(adapters: Sequence[PagedAdapter], first_row: int = 0) -> list[LoraSegment]:
    """Row i is adapter i's: the batch in which nothing is shared."""
    return [
        LoraSegment(first_row + index, first_row + index + 1, adapter)
        for index, adapter in enumerate(adapters)
    ]


def random_tensor(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, std: float = 1.0
) -> Tensor:
    return (torch.randn(tuple(shape), device=device) * std).to(dtype)
