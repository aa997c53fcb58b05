"""Which program of a LoRA launch works on which rows: the arrays of a step's plan.

Pure numpy, no tensors, no device. A *tile* is up to `tile_rows` neighbouring rows of one adapter;
rows of the base are in no tile. Invariant: each row of a segment is in exactly one tile. What a
launch must know on the host is `LoraShape`; all else is in the arrays, which may be padded to any
size, because programs past `counts[0]` end at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kernels.adapter_table import AdapterUse
from kernels.gpu.launch import ceil_div, next_power_of_2, round_up

SMALL_TILE = 16
LARGE_TILE = 64
# By rows of a tile. Expand sums all splits of a tile at once: more of a large one would spill.
MAX_SPLITS = MappingProxyType({SMALL_TILE: 16, LARGE_TILE: 4})
MIN_SPLIT_COLUMNS = 256
# Enough programs that every multiprocessor of a large GPU has several to switch between.
WANTED_PROGRAMS = 1024
# The invariant form splits an input of this many columns, whatever the batch.
FIXED_SPLIT_COLUMNS = 512


@dataclass(frozen=True, slots=True)
class LoraShape:
    """The sizes of a step's LoRA launches. Hashable: a part of a CUDA graph's key.

    num_tiles, num_adapters: of the arrays, padding included. max_ranks, max_replaced: site name
    -> the largest of the batch, sorted; scaled, biased: site names. `fixed`: splits and blocks
    do not depend on the batch, so that a row's bits do not.
    """

    tile_rows: int
    num_tiles: int
    num_adapters: int
    max_ranks: tuple[tuple[str, int], ...]
    scaled: frozenset[str] = frozenset()
    biased: frozenset[str] = frozenset()
    max_replaced: tuple[tuple[str, int], ...] = ()
    fixed: bool = False

    def max_rank(self, site: str) -> int:
        """The largest sum of a site's parts' ranks in the batch; 0: no adapter touches it."""
        return dict(self.max_ranks).get(site, 0)

    def max_rows(self, site: str) -> int:
        """The most rows of the site's weight that an adapter of the batch replaces."""
        return dict(self.max_replaced).get(site, 0)

    def for_graph(self, num_tiles: int, num_adapters: int) -> LoraShape:
        """A shape that serves this one and many others: ranks and rows rounded up."""
        assert num_tiles >= self.num_tiles and num_adapters >= self.num_adapters
        ranks = tuple((name, _round_rank(rank)) for name, rank in self.max_ranks)
        rows = tuple((name, next_power_of_2(count)) for name, count in self.max_replaced)
        return replace(
            self,
            num_tiles=num_tiles,
            num_adapters=num_adapters,
            max_ranks=ranks,
            max_replaced=rows,
        )

    def num_splits(self, num_in: int, rank_blocks: int) -> int:
        """How many programs share the columns of an input in shrink: a power of two."""
        columns = FIXED_SPLIT_COLUMNS if self.fixed else MIN_SPLIT_COLUMNS
        most = min(MAX_SPLITS[self.tile_rows], next_power_of_2(ceil_div(num_in, columns)))
        wanted = ceil_div(WANTED_PROGRAMS, max(1, self.num_tiles * rank_blocks))
        return most if self.fixed else min(most, next_power_of_2(wanted))


@dataclass(frozen=True, slots=True, eq=False)
class LoraArrays:
    """What the device must know of a step.

    tiles: int32 [3, num_tiles], the first row, the number of rows, the adapter's index.
    tables: int64 [num_adapters], the device addresses of the adapters' tables. counts: int32 [1],
    the number of tiles that are not padding.
    """

    tiles: NDArray[np.int32]
    tables: NDArray[np.int64]
    counts: NDArray[np.int32]
    shape: LoraShape

    def padded_to(self, shape: LoraShape) -> LoraArrays:
        """The same plan at the sizes of `shape`, one that serves it (`LoraShape.for_graph`)."""
        tiles = np.zeros((3, shape.num_tiles), np.int32)
        tiles[:, : self.tiles.shape[1]] = self.tiles
        tables = np.zeros(shape.num_adapters, np.int64)
        tables[: self.tables.size] = self.tables
        return LoraArrays(tiles, tables, self.counts, shape)


def plan_tiles(
    segments: Sequence[tuple[int, int, int]],
    tables: Sequence[int],
    uses: Iterable[AdapterUse],
    *,
    tile_rows: int | None = None,
    fixed: bool = False,
) -> LoraArrays:
    """Cut segments (start, end, adapter index) into tiles.

    `tables`, `uses`: one an adapter. `tile_rows`: None to choose by the segments' lengths, which
    a CUDA graph and the invariant form (`fixed`) must not.
    """
    assert tile_rows in (None, *MAX_SPLITS)
    if tile_rows is None:
        tile_rows = SMALL_TILE if fixed else _choose_tile_rows(segments)
    tiles = [
        (row, min(tile_rows, end - row), adapter)
        for start, end, adapter in segments
        for row in range(start, end, tile_rows)
    ]
    uses = list(uses)
    shape = LoraShape(
        tile_rows=tile_rows,
        num_tiles=len(tiles),
        num_adapters=len(tables),
        max_ranks=_largest(use.max_ranks for use in uses),
        scaled=frozenset().union(*(use.scaled for use in uses)),
        biased=frozenset().union(*(use.biased for use in uses)),
        max_replaced=_largest(use.max_replaced for use in uses),
        fixed=fixed,
    )
    return LoraArrays(
        np.array(tiles, np.int32).reshape(-1, 3).T.copy(),
        np.array(tables, np.int64),
        np.array([len(tiles)], np.int32),
        shape,
    )


def _choose_tile_rows(segments: Sequence[tuple[int, int, int]]) -> int:
    """Large tiles where they are mostly full: prompts, or many rows of one adapter."""
    small, large = (
        sum(ceil_div(end - start, rows) for start, end, _ in segments)
        for rows in (SMALL_TILE, LARGE_TILE)
    )
    return LARGE_TILE if small > 2 * large else SMALL_TILE


def _largest(maps: Iterable[Mapping[str, int]]) -> tuple[tuple[str, int], ...]:
    largest: dict[str, int] = {}
    for values in maps:
        for name, value in values.items():
            largest[name] = max(largest.get(name, 0), value)
    return tuple(sorted(largest.items()))


def _round_rank(rank: int) -> int:
    return next_power_of_2(rank) if rank < 64 else round_up(rank, 64)
