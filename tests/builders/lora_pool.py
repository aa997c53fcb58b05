"""Adapters in a poisoned pool of pages: every byte that no vector holds reads as NaN."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.adapter_table import PageFormat, SiteKey
from kernels.gpu.lora import LoraPlan, PagedAdapter, arrays_of
from kernels.interface import LoraSegment, LoraSite
from lora.layout import AdapterLayout, plan_layout
from lora.pages import build_pages, build_table, content_of
from tests.builders.lora_weights import weights_of

NAN_BYTE = 0xFF
"""Four of them are a NaN in float32, two in float16 and bfloat16."""
SPARE_PAGES = 5

Owners = Sequence[tuple[int | None, int]]
"""(adapter's index, or None for the base; number of rows), in row order."""


def place_adapters(
    adapters: Sequence[Mapping[SiteKey, LoraSite]],
    page_format: PageFormat,
    dtype: torch.dtype,
    seed: int = 0,
) -> list[PagedAdapter]:
    """All in one pool, each on pages in random order."""
    weights = [weights_of(sites) for sites in adapters]
    layouts = [plan_layout(content_of(each, page_format.shapes), page_format) for each in weights]
    num_pages = sum(layout.num_pages for layout in layouts) + SPARE_PAGES
    page_ids = random.Random(seed).sample(range(num_pages), num_pages)
    pool = torch.full((num_pages, page_format.page_bytes), NAN_BYTE, dtype=torch.uint8)
    placed = []
    for each, layout in zip(weights, layouts, strict=True):
        own = [page_ids.pop() for _ in range(layout.num_pages)]
        pool[own] = poison_gaps(build_pages(each, layout, dtype), layout)
        table = build_table(layout, own)
        placed.append(PagedAdapter(pool, table, dtype, page_format, layout.use))
    return placed


def poison_gaps(pages: Tensor, layout: AdapterLayout) -> Tensor:
    """The pages with all bytes between and after the vectors set to `NAN_BYTE`."""
    is_used = torch.zeros(pages.numel(), dtype=torch.bool)
    for group in layout.groups:
        for index, place in enumerate(group.places.tolist()):
            rows = min(group.rows_per_vector, group.num_rows - index * group.rows_per_vector)
            is_used[place : place + rows * group.row_stride] = True
    return torch.where(is_used.view_as(pages), pages, NAN_BYTE)


def segments_of(owners: Owners, adapters: Sequence[PagedAdapter]) -> list[LoraSegment]:
    segments, start = [], 0
    for owner, num_rows in owners:
        if owner is not None:
            segments.append(LoraSegment(start, start + num_rows, adapters[owner]))
        start += num_rows
    return segments


def poisoned_plan(
    segments: Sequence[LoraSegment], *, fixed: bool = False, tile_rows: int | None = None
) -> LoraPlan:
    """Padded as for a CUDA graph, by three tiles and adapters that must never be looked at, with
    partials that start as NaN."""
    arrays = arrays_of(segments, fixed=fixed, tile_rows=tile_rows)
    num_tiles, num_adapters = arrays.shape.num_tiles, arrays.shape.num_adapters
    padded = arrays.padded_to(arrays.shape.for_graph(num_tiles + 3, num_adapters + 3))
    padded.tiles[:, num_tiles:] = 1 << 30
    padded.tables[num_adapters:] = 8
    plan = LoraPlan.from_views(
        torch.from_numpy(padded.tiles),
        torch.from_numpy(padded.tables),
        torch.from_numpy(padded.counts),
        padded.shape,
        segments[0].weights,
        workspace=torch.full((1 << 21,), torch.nan),
    )
    return replace(plan, adapters=tuple(segment.weights for segment in segments))
