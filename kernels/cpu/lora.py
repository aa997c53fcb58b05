"""Batched LoRA on a CPU: small products per adapter over rows sorted by adapter.

For the few adapters of a CPU batch this is faster than padding ranks into one batched product
(measured: `bench/` and the figures in the kernel notes), and it keeps true ranks by itself. Few
rows of an adapter, which is what decoding sequences bring, go through compiled loops.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import overload
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.lora_rows import Table, add_rows, addresses
from kernels.interface import LoraSegment, LoraSite, LoraSites, SiteKey

MAX_LOOP_ROWS = 4
"""Of a segment. With more of them a product of matrices, which reads A and B once, is faster."""

NUM_KNOWN_BATCHES = 16
_known_addresses: WeakKeyDictionary[LoraSites, dict[SiteKey, Table]] = WeakKeyDictionary()


@lru_cache(NUM_KNOWN_BATCHES)
def _tables_of(
    segments: tuple[tuple[ref[LoraSites], int, int], ...], max_loop_rows: int
) -> dict[SiteKey, Table | None]:
    """The tables of a batch, filled in as they are needed: the next step's batch is often alike."""
    return {}


class LoraPlan(Sequence[LoraSegment]):
    """The segments of a step; a site of the short ones also as a table for `add_rows`."""

    def __init__(self, segments: Sequence[LoraSegment], max_loop_rows: int) -> None:
        self._segments = segments
        self._tables = _tables_of(
            tuple((ref(each.weights), each.start, each.end) for each in segments), max_loop_rows
        )
        self.long: list[LoraSegment] = []
        self._short: list[tuple[LoraSegment, dict[SiteKey, Table]]] = []
        for segment in segments:
            if segment.end - segment.start > max_loop_rows:
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
        if key not in self._tables:
            self._tables[key] = self._short_rows(key)
        return self._tables[key]

    def _short_rows(self, key: SiteKey) -> Table | None:
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
    return LoraPlan(segments, MAX_LOOP_ROWS)


def plan_lora_invariant(segments: Sequence[LoraSegment]) -> LoraPlan:
    """Loops for all rows: they treat each alone, so that its bits depend on no other."""
    return LoraPlan(segments, sys.maxsize)


def add_lora(y: Tensor, x: Tensor, plan: LoraPlan, key: SiteKey) -> None:
    """For a 16-bit model products and sums are in float32, with one rounding at the end."""
    wide_y, wide_x = y.float().contiguous(), x.float().contiguous()
    if (table := plan.short_rows(key)) is not None:
        add_rows(wide_y.numpy(), wide_x.numpy(), table)
    for segment in plan.long:
        site = segment.weights.sites.get(key)
        if site is not None:
            rows = slice(segment.start, segment.end)
            _add_to_rows(wide_y[rows], wide_x[rows], site)
    if wide_y is not y:
        y.copy_(wide_y)


def _add_to_rows(y: Tensor, x: Tensor, site: LoraSite) -> None:
    """y [rows, N], x [rows, K]."""
    hidden = torch.mm(x, site.a.t())
    for part in site.parts:
        (rank_begin, rank_end), (out_begin, out_end) = part.rank, part.out
        y[:, out_begin:out_end].addmm_(hidden[:, rank_begin:rank_end], part.b.t())
