"""The bench of adapters that do not fit: its load, its predictions, its plot and its verdict."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from bench.adapters import Row, plot, summarise, verdict
from bench.engine_client import Answer
from bench.no_cliff import Draws, Predicted, Streams, Turn, predict
from bench.no_stall import Round, Run
from bench.svg_plot import line_plot

STREAMS = Streams(num_streams=8, num_requests=200)


def test_no_two_requests_in_flight_are_for_the_same_adapter() -> None:
    draws = Draws(9, STREAMS)
    in_flight = [draws.next()[0] for _ in range(8)]
    for turn in range(500):
        assert len(set(in_flight)) == 8
        draws.end(in_flight.pop(turn % 8))
        in_flight.append(draws.next()[0])


def test_a_draw_with_every_adapter_in_flight_is_refused_not_endless() -> None:
    draws = Draws(2, STREAMS)
    first = [draws.next()[0] for _ in range(2)]
    with pytest.raises(RuntimeError, match="in flight"):
        draws.next()
    for adapter in first:  # a turn ends with none in flight, and the next one draws again
        draws.end(adapter)
    assert draws.next()[0] in first


def test_adapters_are_drawn_by_zipfs_law() -> None:
    draws = Draws(100, replace(STREAMS, num_streams=1))
    drawn = [0] * 100
    for _ in range(4000):
        adapter, _ = draws.next()
        draws.end(adapter)
        drawn[adapter] += 1
    assert drawn[0] > drawn[3] > drawn[20] > 0


def test_what_fits_is_predicted_never_to_miss_once_it_is_there() -> None:
    all_fit = predict(8, STREAMS, num_turns=3, fits=32)
    assert all_fit == Predicted(0.0, 0.0)
    some_fit, few_fit = (predict(256, STREAMS, num_turns=3, fits=fits) for fits in (32, 8))
    assert 0.1 < some_fit.miss_rate < few_fit.miss_rate < 1.0
    assert some_fit.reads == few_fit.reads > 0, "the host keeps what the pool does not"


def test_the_expected_share_is_what_the_reads_leave() -> None:
    assert Predicted(0.5, 10.0).share(seconds=9.0, load_s=0.1) == pytest.approx(0.9)
    assert Predicted(0.0, 0.0).share(seconds=9.0, load_s=0.1) == 1.0


def make_turn(seconds: float, ttfts: dict[bool, float]) -> Turn:
    answers = [
        Answer("it", was_in_pool, 10.0, [10.0 + ttft_s]) for was_in_pool, ttft_s in ttfts.items()
    ]
    return Turn(seconds, 100, answers, 1, 2, [0.0001, 0.0004])


def make_rows() -> list[Row]:
    turns = {8: [make_turn(10.0, {True: 0.2})], 2000: [make_turn(12.5, {True: 0.2, False: 0.3})]}
    return summarise(turns, {8: Predicted(0.0, 0.0), 2000: Predicted(0.5, 25.0)}, load_s=0.02)


def test_the_verdict_has_the_ratios() -> None:
    rows = make_rows()
    assert (rows[1].of_8, rows[1].ttft_ratio) == (pytest.approx(0.8), pytest.approx(1.5))
    assert rows[1].expected_of_8 == pytest.approx(10 / 10.5)
    rounds = [Round(Run(100.0, []), Run(110.0, []), Run(121.0, [0.0007]))]
    line = verdict(rows, rounds, "0.5 ms")
    for part in ("0.800 (>= 0.902)", "1.50 (<=", "0.70 ms", "1.21x quiet", "1.10x hot", "0.5 ms"):
        assert part in line


def test_the_plot_is_well_formed_and_shows_every_point() -> None:
    svg = ElementTree.fromstring(plot(make_rows()))
    circles = svg.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 4
    escaped = line_plot("a < b", "x", "y", {"one": [(1.0, 0.0)]})
    assert "a &lt; b" in escaped
    ElementTree.fromstring(escaped)
