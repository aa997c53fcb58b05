"""The busiest few tenants have series of their own, however many there are."""

from __future__ import annotations

from dataclasses import dataclass

from app.metrics.top import CANDIDATES, OTHER, TopLabels


@dataclass
class Ticks:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_labels_are_bounded_however_many_tenants_there_are() -> None:
    top = TopLabels(3)
    labels = {top.label(f"ten_{i}") for i in range(10_000)}
    assert len(labels) <= 3 + 1 and OTHER in labels
    assert len(top._candidates) <= CANDIDATES * 3


def test_who_becomes_busy_takes_the_place_of_the_idlest_and_its_series_go() -> None:
    gone: list[str] = []
    top = TopLabels(2, gone.append)
    for name, weight in (("a", 100), ("b", 10), ("c", 8)):
        top.label(name, weight)
    assert top.members == {"a", "b"} and gone == []
    assert top.label("c", 5) == OTHER  # 13 is not half as much again as 10
    assert top.label("c", 5) == "c"
    assert top.members == {"a", "c"} and gone == ["b"]


def test_what_was_long_ago_weighs_little() -> None:
    ticks = Ticks()
    top = TopLabels(1, half_life_s=60.0, clock=ticks)
    top.label("old", 1000)
    ticks.now = 60.0 * 200  # also past the point where weights are scaled down
    assert top.label("new", 1) == "new" and top.label("old", 0) == OTHER


def test_without_room_for_any_all_are_other() -> None:
    assert {TopLabels(0).label(name) for name in "abc"} == {OTHER}
