"""K and V of every page, layer by layer: the CPU form of the pool's storage.

A page is an id; per layer its block lies at [:, page] of two tensors
[num_kv_heads, num_pages, block_size, head_dim]. The storage starts unwritten, so pages that were
never used for KV take no memory; adapters lie beside it, so that a pool which was first full of KV
and then of adapters can take up to twice its size.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Storage for `num_pages` blocks of `num_layers` layers."""

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        num_pages: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> None:
        shape = (num_kv_heads, num_pages, block_size, head_dim)
        self._layers = [
            (torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype))
            for _ in range(num_layers)
        ]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """The K and V caches of one layer."""
        return self._layers[index]

    @torch.inference_mode()
    def poison(self) -> None:
        """Fill everything with NaN: whoever reads what was never written will show it."""
        for key_cache, value_cache in self._layers:
            key_cache.fill_(torch.nan)
            value_cache.fill_(torch.nan)
