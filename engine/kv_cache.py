"""K and V of every page: per layer on a CPU, one flat buffer of pages on a GPU.

Both forms hand out a layer's caches as [num_kv_heads, num_pages, block_size, head_dim]; kernels
take their strides as they come. Knows nothing of who owns a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one page holds: `block_size` tokens' K and V for all layers."""

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype


class KVCache(Protocol):
    """Storage for the K and V of all layers."""

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """The K and V caches of one layer."""

    def poison(self, pages: Sequence[int] | None = None) -> None:
        """Fill `pages`, by default all, with NaN: whoever reads what is not there shows it."""


class LayeredKVCache:
    """The CPU form: a page is an id, and per layer its block lies at [:, page] of two tensors.

    The storage starts unwritten, so pages that were never used for KV take no memory; adapters lie
    beside it, so that a pool which was first full of KV and then of adapters can take up to twice
    its size.
    """

    def __init__(self, shape: CacheShape, num_pages: int) -> None:
        size = (shape.num_kv_heads, num_pages, shape.block_size, shape.head_dim)
        self._layers = [
            (torch.empty(size, dtype=shape.dtype), torch.empty(size, dtype=shape.dtype))
            for _ in range(shape.num_layers)
        ]

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self._layers[index]

    @torch.inference_mode()
    def poison(self, pages: Sequence[int] | None = None) -> None:
        index = slice(None) if pages is None else list(pages)
        for key_cache, value_cache in self._layers:
            key_cache[:, index] = torch.nan
            value_cache[:, index] = torch.nan


class PagedKVCache:
    """The GPU form: one buffer of bytes, cut into pages that K, V and adapters share.

    `pages`: [num_pages, page_bytes] uint8. A page used for KV is laid out
    [layer][k|v][kv_head][block_size][head_dim], so that it moves between device and host as one
    piece.
    """

    def __init__(
        self, shape: CacheShape, num_pages: int, page_bytes: int, device: torch.device
    ) -> None:
        self.pages = torch.empty((num_pages, page_bytes), dtype=torch.uint8, device=device)
        elements = self.pages.view(shape.dtype)
        block = shape.block_size * shape.head_dim
        size = (shape.num_kv_heads, num_pages, shape.block_size, shape.head_dim)
        strides = (block, elements.shape[1], shape.head_dim, 1)
        self._halves = [
            elements.as_strided(size, strides, storage_offset=index * shape.num_kv_heads * block)
            for index in range(2 * shape.num_layers)
        ]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self._halves[2 * index], self._halves[2 * index + 1]

    @torch.inference_mode()
    def poison(self, pages: Sequence[int] | None = None) -> None:
        index = slice(None) if pages is None else list(pages)
        self.pages[index] = 0xFF  # a NaN in every dtype that is served
