"""Adapters with every form that kernels serve, in a pool of NaN, and the same as plain weights.

Knows no op. Invariant: an adapter's numbers are exact in the compute dtype, so that the plain
weights and the pages hold the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bench.gpu_inputs import Pool, random_tensor
from bench.gpu_timing import compute_device
from bench.shapes import LLAMA_3_8B
from kernels import gpu
from kernels.gpu.lora import LoraPlan, PagedAdapter
from kernels.interface import LoraPart, LoraSegment, LoraSite, ReplacedRows, SiteKey
from lora.base_spec import BaseSpec
from lora.layout import plan_layout
from lora.pages import content_of
from lora.sites import DOWN, EMBED_TOKENS, GATE_UP, LM_HEAD, OUT, QKV
from lora.weights import LoraWeights

RANKS = (1, 8, 16, 64, 130)
DRY_RANKS = (1, 5, 8)
# Owners of runs of rows: None is the base, a number an adapter; each with how many rows.
POPULARITY: dict[str, list[tuple[int | None, int]]] = {
    "distinct": [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)],
    "identical": [(3, 64)],
    "skewed": [(2, 40), (0, 1), (3, 2), (4, 1)],
    "base between": [(None, 3), (1, 1), (None, 2), (4, 5), (None, 1)],
    "prompts": [(0, 200), (None, 7), (3, 61), (4, 33)],
}
KEYS: tuple[SiteKey, ...] = tuple((0, site.name) for site in (QKV, OUT, GATE_UP, DOWN))
Rows = list[tuple[int | None, int, int]]
"""(adapter or None for the base, first row, end) of each run of a batch's rows."""


class Adapters:
    """One adapter of each rank, with every form, in one pool; and the same as plain weights."""

    def __init__(
        self, base: BaseSpec, ranks: Sequence[int], dtype: torch.dtype, *, dry: bool
    ) -> None:
        self.base, self.dtype, self.device = base, dtype, compute_device(dry=dry)
        # As long a block as makes one layer's page as large as that of the whole base.
        block_size = 128 if dry else 16 * LLAMA_3_8B.num_layers
        self.pool = self._pool(0, block_size)
        self.weights = [self._weights(rank, index) for index, rank in enumerate(ranks)]
        layouts = [
            plan_layout(content_of(each, self.pool.format.shapes), self.pool.format)
            for each in self.weights
        ]
        self.pool = self._pool(sum(layout.num_pages for layout in layouts), block_size)
        self.pool.poison()
        self.paged: list[PagedAdapter] = [
            self.pool.install(weights, layout)
            for weights, layout in zip(self.weights, layouts, strict=True)
        ]

    def rows(self, popularity: str) -> Rows:
        """(adapter, first row, end) of each run of rows; fewer where the adapters are fewer."""
        runs, start = [], 0
        for owner, count in POPULARITY[popularity]:
            count = min(count, 20) if len(self.paged) < len(RANKS) else count
            owner = None if owner is None else owner % len(self.paged)
            runs.append((owner, start, start + count))
            start += count
        return runs

    def plan(self, rows: Rows) -> LoraPlan | None:
        return gpu.plan_lora(
            [
                LoraSegment(start, end, self.paged[owner])
                for owner, start, end in rows
                if owner is not None
            ]
        )

    def tensor(self, *shape: int) -> Tensor:
        return random_tensor(shape, self.dtype, self.device)

    def _pool(self, num_pages: int, block_size: int) -> Pool:
        return Pool(
            self.base, num_pages, block_size=block_size, dtype=self.dtype, device=self.device
        )

    def _weights(self, rank: int, index: int) -> LoraWeights:
        shapes = self.pool.format.shapes
        sites: dict[SiteKey, LoraSite] = {}
        for key in (*KEYS, EMBED_TOKENS, LM_HEAD):
            sites[key] = self._site(shapes[key].num_in, shapes[key].widths, rank)
        sites[KEYS[0]] = self._with_forms(sites[KEYS[0]])
        ids = torch.randperm(self.base.vocab_size)[: 3 + index].sort().values
        rows = ReplacedRows(self._exact(ids.numel(), self.base.hidden_size), ids)
        sites[EMBED_TOKENS] = replace(sites[EMBED_TOKENS], replaced=rows)
        num_in, width = shapes[KEYS[1]].num_in, sum(shapes[KEYS[1]].widths)
        whole = ReplacedRows(self._exact(width, num_in) / num_in**0.5, None, torch.randn(width))
        sites[KEYS[1]] = replace(sites[KEYS[1]], replaced=whole)
        num_bytes = sum(site.a.nbytes for site in sites.values())
        return LoraWeights(sites, num_bytes=num_bytes)

    def _site(self, num_in: int, widths: Sequence[int], rank: int) -> LoraSite:
        parts, out = [], 0
        for index, width in enumerate(widths):
            b = (self._exact(rank, width) / rank**0.5).to(self.dtype).float().t()
            parts.append(LoraPart(b, (index * rank, (index + 1) * rank), (out, out + width)))
            out += width
        a = self._exact(rank * len(widths), num_in) / num_in**0.5
        return LoraSite(a.to(self.dtype).float(), tuple(parts))

    def _with_forms(self, site: LoraSite) -> LoraSite:
        width = site.parts[-1].out[1]
        return replace(site, scale=torch.rand(width) + 0.5, bias=torch.randn(width))

    def _exact(self, *shape: int) -> Tensor:
        return torch.randn(*shape).to(self.dtype).float()
