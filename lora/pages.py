"""An adapter's weights as the bytes of its pages, and its table for the pages that it was given.

Works on the host, off the step loop; knows nothing of pools. Invariant: reading the layout's
vectors back gives the weights, rounded once to the compute dtype (scales and biases stay float32).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from kernels.adapter_table import UNIT_BYTES, SiteKey, SiteShape
from kernels.interface import LoraSite
from lora.layout import AdapterLayout, RowsContent, SiteContent
from lora.layout_builder import FLOAT_SIDES, VectorGroup, round_up
from lora.sites import EMBED_TOKENS
from lora.weights import LoraWeights


def content_of(
    weights: LoraWeights, shapes: Mapping[SiteKey, SiteShape]
) -> dict[SiteKey, SiteContent]:
    """What `lora.layout.plan_layout` must place for `weights`."""
    return {key: _site_content(site, shapes[key]) for key, site in weights.sites.items()}


def build_pages(
    weights: LoraWeights, layout: AdapterLayout, dtype: torch.dtype, *, pin: bool = False
) -> Tensor:
    """The adapter's bytes: uint8 [num_pages, page_bytes] on the host; what is unused is 0.

    `dtype`: the compute dtype, of the layout's `itemsize`. `pin`: in memory that a GPU reads
    directly (needs CUDA).
    """
    assert dtype.itemsize == layout.format.itemsize
    shape = (layout.num_pages, layout.format.page_bytes)
    pages = torch.zeros(shape, dtype=torch.uint8, pin_memory=pin)
    with torch.inference_mode():
        for group in layout.groups:
            _write(pages.view(-1), group, _source(weights.sites[group.key], group), dtype)
    return pages


def build_table(layout: AdapterLayout, page_ids: Sequence[int]) -> Tensor:
    """The int32 table for an adapter whose page i is page `page_ids[i]` of the pool."""
    assert len(page_ids) == layout.num_pages
    units = layout.format.page_bytes // UNIT_BYTES
    table = layout.table.copy()
    page, place = np.divmod(table[layout.place_words].astype(np.int64), units)
    table[layout.place_words] = np.asarray(page_ids, np.int64)[page] * units + place
    return torch.from_numpy(table)


def read_group(pages: Tensor, group: VectorGroup, dtype: torch.dtype) -> Tensor:
    """The group's matrix [num_rows, columns], read back from the adapter's `pages`."""
    windows = [window for _, window in _windows(pages.view(-1), group, dtype)]
    return torch.cat(windows)


def _site_content(site: LoraSite, shape: SiteShape) -> SiteContent:
    begins = np.cumsum([0, *shape.widths]).tolist()
    ranks = [0] * len(shape.widths)
    for part in site.parts:
        ranks[begins.index(part.out[0])] = part.rank[1] - part.rank[0]
    rows = site.replaced
    return SiteContent(
        tuple(ranks),
        has_scale=site.scale is not None,
        has_bias=site.bias is not None,
        replaced=None
        if rows is None
        else RowsContent(
            rows.rows.shape[0],
            None if rows.ids is None else rows.ids.numpy().astype(np.int32),
            rows.bias is not None,
        ),
    )


def _source(site: LoraSite, group: VectorGroup) -> Tensor:
    """The group's matrix [num_rows, columns]; a scale or bias is one row."""
    begin, end = group.columns
    match group.side:
        case "a":
            source = site.a.t() if group.key == EMBED_TOKENS else site.a
        case "b":
            source = site.parts[group.part].b.t()
        case "scale":
            source = _row(site.scale)
        case "bias":
            source = _row(site.bias)
        case "rows":
            assert site.replaced is not None
            source = site.replaced.rows
        case "row_bias":
            assert site.replaced is not None
            source = _row(site.replaced.bias)
        case _:
            raise AssertionError(group.side)
    return source[:, begin:end]


def _row(vector: Tensor | None) -> Tensor:
    assert vector is not None
    return vector[None]


def _write(flat: Tensor, group: VectorGroup, source: Tensor, dtype: torch.dtype) -> None:
    for begin, window in _windows(flat, group, dtype):
        window.copy_(source[begin : begin + window.shape[0]])


def _windows(flat: Tensor, group: VectorGroup, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """The first row and a view [rows, columns] of each stretch of evenly spaced rows."""
    if group.side in FLOAT_SIDES:
        dtype = torch.float32
    length = (group.columns[1] - group.columns[0]) * group.itemsize
    for place, begin, count, stride in _stretches(group):
        rows = flat[place : place + count * stride].view(count, stride)
        yield begin, rows[:, :length].view(dtype)


def _stretches(group: VectorGroup) -> Iterator[tuple[int, int, int, int]]:
    """(place, first row, rows, bytes from row to row): runs, or neighbours within a page."""
    if group.rows_per_vector > 1:
        for index, place in enumerate(group.places.tolist()):
            begin = index * group.rows_per_vector
            count = min(group.rows_per_vector, group.num_rows - begin)
            yield place, begin, count, group.row_stride
        return
    stride = round_up(group.row_stride, UNIT_BYTES)
    breaks = np.flatnonzero(np.diff(group.places) != stride) + 1
    bounds = [0, *breaks.tolist(), group.places.size]
    for begin, end in pairwise(bounds):
        yield int(group.places[begin]), begin, end - begin, stride
