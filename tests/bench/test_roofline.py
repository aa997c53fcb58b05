"""The floors are the known figures of Llama-3-8B, and are counted from the layout itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from bench import roofline
from bench.roofline import H200, adapter_layout
from bench.shapes import LLAMA_3_8B, TARGET_SETS
from lora.layout import AdapterLayout

SLOWER = replace(H200, copy=3.35e12)
ALL, ATTENTION, QUERY_VALUE = TARGET_SETS.values()


def counted_gaps(layout: AdapterLayout) -> int:
    """Bytes of the adapter's pages in no vector, found by walking the vectors' places."""
    intervals = []
    for group in layout.groups:
        begin, end = group.columns
        length = (end - begin) * group.itemsize
        assert group.rows_per_vector == 1, "plain LoRA has no runs of rows"
        intervals += [(int(place), int(place) + length) for place in group.places]
    intervals.sort()
    gaps, reached = 0, 0
    for begin, end in intervals:
        assert begin >= reached, "two vectors overlap"
        gaps += begin - reached
        reached = end
    return gaps + layout.num_pages * layout.format.page_bytes - reached


def vector_bytes(modules: tuple[str, ...], rank: int) -> int:
    """A and B of every layer, from the base's shapes alone."""
    shapes = LLAMA_3_8B.linear_modules()
    return LLAMA_3_8B.num_layers * sum(2 * rank * sum(shapes[name]) for name in modules)


def test_weights_and_kv_of_llama_3_8b_are_the_known_ones() -> None:
    assert roofline.weight_bytes(LLAMA_3_8B) / 1e9 == pytest.approx(15.01, abs=0.005)
    assert roofline.kv_bytes_per_token(LLAMA_3_8B) == 128 * 1024
    assert roofline.page_bytes(LLAMA_3_8B) == 2 * 2**20


@pytest.mark.parametrize(("modules", "mb"), [(ALL, 5.24), (ATTENTION, 1.70), (QUERY_VALUE, 0.85)])
def test_a_rank_costs_the_known_bytes(modules: tuple[str, ...], mb: float) -> None:
    assert roofline.adapter_bytes(LLAMA_3_8B, modules, 1) / 1e6 == pytest.approx(mb, abs=0.005)


@pytest.mark.parametrize("rank", [1, 8, 13, 64])
@pytest.mark.parametrize("modules", TARGET_SETS.values(), ids=TARGET_SETS)
def test_pages_hold_the_vectors_and_the_counted_waste(modules: tuple[str, ...], rank: int) -> None:
    layout = adapter_layout(LLAMA_3_8B, modules, rank)
    total = layout.num_pages * layout.format.page_bytes
    assert layout.num_bytes == vector_bytes(modules, rank)
    assert layout.num_bytes + counted_gaps(layout) == total
    assert layout.waste == pytest.approx(counted_gaps(layout) / total)


def test_a_vector_that_is_counted_twice_or_moved_would_be_noticed() -> None:
    layout = adapter_layout(LLAMA_3_8B, QUERY_VALUE, 1)
    group = layout.groups[0]
    before = group.places.copy()
    try:
        group.places[:] = layout.groups[1].places[: group.places.size]
        with pytest.raises(AssertionError, match="overlap"):
            counted_gaps(layout)
    finally:
        group.places[:] = before
    assert np.array_equal(layout.groups[0].places, before)


@pytest.mark.parametrize(
    ("batch", "context", "ms", "tokens_per_s"),
    [
        (1, 1024, 3.52, 284),
        (32, 8192, 11.48, 2787),
        (64, 1024, 5.49, 11661),
        (256, 1024, 12.85, 19915),
    ],
)
def test_step_floors_are_the_known_ones(
    batch: int, context: int, ms: float, tokens_per_s: float
) -> None:
    floor_s = roofline.step_s(LLAMA_3_8B, batch, context, H200)
    assert floor_s * 1e3 == pytest.approx(ms, abs=0.006)
    assert batch / floor_s == pytest.approx(tokens_per_s, rel=2e-3)


def test_lora_floor_of_64_adapters_is_the_known_share_of_a_step() -> None:
    lora_s = roofline.lora_bytes(LLAMA_3_8B, ALL, [16] * 64) / H200.copy
    assert lora_s * 1e3 == pytest.approx(1.249, abs=0.001)
    share = lora_s / roofline.step_s(LLAMA_3_8B, 64, 1024, H200)
    assert share == pytest.approx(0.227, abs=0.001)


def test_mixed_ranks_cost_the_sum_of_their_ranks() -> None:
    mixed = roofline.lora_bytes(LLAMA_3_8B, ALL, [8, 16, 32, 64])
    assert mixed == roofline.lora_bytes(LLAMA_3_8B, ALL, [1] * 120)


def test_what_does_not_fit_has_no_floor() -> None:
    assert not roofline.fits(LLAMA_3_8B, 256, 8192, 0, H200)
    assert roofline.fits(LLAMA_3_8B, 64, 8192, 0, H200)
    rows = roofline.step_grid(LLAMA_3_8B, H200).rows
    assert rows[-1][-2:] == ["does not fit", "-"]


def test_the_command_prints_tables_that_a_page_can_hold() -> None:
    app = typer.Typer()
    app.command()(roofline.main)
    result = CliRunner().invoke(app, ["--markdown"])
    assert result.exit_code == 0
    assert "| 64 | 3.49 | 1.22 | 2.00 | 5.49 (11661) |" in result.output
    assert "| q/v | 8 | 6.82 | 4 | 18.8% |" in result.output


def test_the_page_on_performance_shows_todays_floors() -> None:
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    for grid in roofline.all_grids():
        assert grid.as_markdown() in page, grid.title
    assert roofline.step_grid(LLAMA_3_8B, SLOWER).as_markdown() not in page
