"""Batched LoRA on a CPU: small products per adapter over rows sorted by adapter.

For the few adapters of a CPU batch this is faster than padding ranks into one batched product
(measured: `bench/` and the figures in the kernel notes), and it keeps true ranks by itself. Few
rows of an adapter, which is what decoding sequences bring, go through compiled loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.lora_rows import Table, add_rows, addresses
from kernels.interface import LoraSegment, LoraSite, LoraSites, SiteKey

MAX_LOOP_ROWS = 4
"""Of a segment. With more of them a product of matrices, which reads A and B once, is faster."""

_known_addresses: WeakKeyDictionary[LoraSites, dict[SiteKey, Table]] = WeakKeyDictionary()


class LoraPlan(Sequence[LoraSegment]):
    """The segments of a step; a site of the short ones also as a table for `add_rows`."""

    def __init__(self, segments: Sequence[LoraSegment]) -> None:
        self._segments = segments
        self.long: list[LoraSegment] = []
        self._short: list[tuple[LoraSegment, dict[SiteKey, Table]]] = []
        for segment in segments:
            if segment.end - segment.start > MAX_LOOP_ROWS:
                self.long.append(segment)
            else:
                self._short.append((segment, _known_addresses.setdefault(segment.weights, {})))

    @overload
    def __getitem__(self, index: int) -> LoraSegment: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[LoraSegment]: ...

    def __getitem__(self, index: int | slice) -> LoraSegment | Sequence[LoraSegment]:
        return self._segments[index]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LoraSegment]:
        return iter(self._segments)

    def short_rows(self, key: SiteKey) -> Table | None:
        """A table of the short segments that have the site; None where none has."""
        found = []
        for segment, known in self._short:
            row = known.get(key)
            if row is None and (site := segment.weights.sites.get(key)) is not None:
                row = known[key] = addresses(site)
            if row is not None:
                found.append((segment, row))
        if not found:
            return None
        table = np.zeros((len(found), max(len(row) for _, row in found)), np.int64)
        for entry, (segment, row) in zip(table, found, strict=True):
            entry[: len(row)] = row
            entry[0], entry[1] = segment.start, segment.end
        return table


def plan_lora(segments: Sequence[LoraSegment]) -> LoraPlan:
    return LoraPlan(segments)


def add_lora(y: Tensor, x: Tensor, plan: LoraPlan, key: SiteKey) -> None:
    is_wide = y.dtype == torch.float32
    by_loops = is_wide and x.is_contiguous() and y.is_contiguous()
    if by_loops and (table := plan.short_rows(key)) is not None:
        add_rows(y.numpy(), x.numpy(), table)
    for segment in plan.long if by_loops else plan:
        site = segment.weights.sites.get(key)
        if site is not None:
            add = _add_to_rows if is_wide else _add_widened
            add(y[segment.start : segment.end], x[segment.start : segment.end], site)


def _add_to_rows(y: Tensor, x: Tensor, site: LoraSite) -> None:
    """y [rows, N], x [rows, K]."""
    hidden = torch.mm(x, site.a.t())
    for part in site.parts:
        (rank_begin, rank_end), (out_begin, out_end) = part.rank, part.out
        y[:, out_begin:out_end].addmm_(hidden[:, rank_begin:rank_end], part.b.t())


def _add_widened(y: Tensor, x: Tensor, site: LoraSite) -> None:
    """For a 16-bit model: products and the sum in float32, one rounding at the end."""
    wide = y.float()
    _add_to_rows(wide, x.float(), site)
    y.copy_(wide)
