"""The plan of a step's LoRA launches: every row once, and nothing of the padding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.adapter_table import AdapterUse
from kernels.gpu.lora_plan import LARGE_TILE, SMALL_TILE, LoraArrays, LoraShape, plan_tiles

Segments = list[tuple[int, int, int]]


def use(**max_ranks: int) -> AdapterUse:
    return AdapterUse(max_ranks, frozenset(), frozenset(), {})


def owners_of(arrays: LoraArrays) -> list[tuple[int, int]]:
    """(row, adapter index) of every row of every tile that counts."""
    tiles = arrays.tiles[:, : int(arrays.counts[0])].T.tolist()
    return [(row0 + i, adapter) for row0, rows, adapter in tiles for i in range(rows)]


@st.composite
def segments_strategy(draw: st.DrawFn) -> Segments:
    segments, row = [], 0
    for adapter in range(draw(st.integers(0, 6))):
        row += draw(st.integers(0, 3))
        length = draw(st.integers(0, 200))
        segments.append((row, row + length, adapter))
        row += length
    return segments


@given(segments=segments_strategy(), fixed=st.booleans())
def test_every_row_of_a_segment_is_in_exactly_one_tile(segments: Segments, fixed: bool) -> None:
    uses = [use() for _ in segments]
    arrays = plan_tiles(segments, [0] * len(segments), uses, fixed=fixed)
    want = [(row, adapter) for start, end, adapter in segments for row in range(start, end)]
    assert sorted(owners_of(arrays)) == sorted(want)
    assert (arrays.tiles[1] <= arrays.shape.tile_rows).all()


def test_a_row_that_is_in_two_tiles_would_be_noticed() -> None:
    arrays = plan_tiles([(0, 20, 0)], [0], [use()], tile_rows=16)
    arrays.tiles[1, 1] += 1
    assert sorted(owners_of(arrays)) != [(row, 0) for row in range(20)]


def test_padding_keeps_the_plan() -> None:
    arrays = plan_tiles([(0, 20, 0), (21, 22, 1)], [5, 6], [use(), use()], tile_rows=16)
    padded = arrays.padded_to(arrays.shape.for_graph(8, 4))
    assert owners_of(padded) == owners_of(arrays)
    assert padded.tiles.shape == (3, 8) and padded.tables.tolist() == [5, 6, 0, 0]


def test_prompts_get_large_tiles_and_decodes_small_ones() -> None:
    decodes = [(row, row + 1, row) for row in range(64)]
    uses = [use()] * 65
    assert plan_tiles(decodes, [0] * 65, uses).shape.tile_rows == SMALL_TILE
    prompts = [(0, 512, 0), (512, 1024, 1)]
    assert plan_tiles(prompts, [0] * 65, uses).shape.tile_rows == LARGE_TILE
    assert plan_tiles(prompts, [0] * 65, uses, fixed=True).shape.tile_rows == SMALL_TILE


def test_a_launch_is_as_large_as_the_batchs_largest_rank_at_that_site() -> None:
    shape = plan_tiles([(0, 1, 0), (1, 2, 1)], [0, 0], [use(qkv=24, o=8), use(qkv=12)]).shape
    assert (shape.max_rank("qkv"), shape.max_rank("o"), shape.max_rank("down")) == (24, 8, 0)
    assert shape.for_graph(4, 4).max_rank("qkv") == 32


@pytest.mark.parametrize("num_in", [48, 576, 4096, 14336])
def test_only_the_fixed_form_splits_alike_for_every_batch(num_in: int) -> None:
    def splits(num_tiles: int, *, fixed: bool) -> int:
        return LoraShape(SMALL_TILE, num_tiles, 1, (), fixed=fixed).num_splits(num_in, 2)

    sizes = (1, 64, 2000)
    assert len({splits(size, fixed=True) for size in sizes}) == 1
    if num_in > 256:
        assert len({splits(size, fixed=False) for size in sizes}) > 1
