"""Sections of a bench keep to their time: what overruns is cut, what dies costs itself alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.gpu import SECTIONS, figures_grid, goals_grid, is_sound, sections_grid
from bench.gpu_records import GOALS, Record, goal_record
from bench.gpu_supervisor import Outcome, Section, Supervisor

LONG_S = 60.0
ROOT = Path(__file__).parents[2]


def sections(*functions: str, budget_s: float = LONG_S) -> list[Section]:
    return [
        Section(name, f"tests.builders.bench_sections:{name}", LONG_S, budget_s)
        for name in functions
    ]


def run(plan: list[Section], *, dry: bool = True, total_s: float = LONG_S) -> list[Outcome]:
    return list(Supervisor(plan, dry=dry, total_s=total_s, facts={}).run())


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_a_section_that_overruns_is_cut_and_said_so() -> None:
    plan = [*sections("endless", budget_s=5.0), *sections("quick")]
    cut, after = run(plan)
    assert (cut.status, after.status) == ("cut", "done")
    assert "cut after its 5.0 s" in cut.detail
    assert [record.what for record in cut.records] == ["before"]
    shown = sections_grid([cut, after]).rows
    assert [row[1] for row in shown] == ["cut", "done"]
    assert not is_sound([cut, after], dry=True)
    assert is_sound([cut, after], dry=False)


def test_a_section_within_its_time_is_not_cut() -> None:
    (outcome,) = run(sections("quick"))
    assert (outcome.status, outcome.detail) == ("done", "")
    assert is_sound([outcome], dry=True)


def test_a_worker_that_dies_costs_one_section() -> None:
    before, dead, failed, after = run(sections("quick", "dying", "raising", "quick"))
    assert [each.status for each in (before, dead, failed, after)] == [
        "done", "failed", "failed", "done"
    ]  # fmt: skip
    assert "code 7" in dead.detail and len(dead.records) == 1
    assert failed.detail == "ValueError: no such kernel"
    assert before.records[0].measured != after.records[0].measured, "a new process"


@pytest.mark.parametrize(("dry", "num_workers"), [(False, 3), (True, 1)])
def test_a_section_that_needs_the_whole_gpu_has_a_worker_of_its_own(
    dry: bool, num_workers: int
) -> None:
    first, second, third = sections("quick", "quick", "quick")
    outcomes = run([first, replace(second, alone=True), third], dry=dry)
    assert [each.status for each in outcomes] == ["done"] * 3
    assert len({each.records[0].measured for each in outcomes}) == num_workers


def test_what_the_whole_run_has_no_time_for_is_skipped() -> None:
    cut, skipped = run(sections("endless", "quick"), total_s=5.0)
    assert (cut.status, skipped.status) == ("cut", "skipped")
    assert skipped.records == []


def test_facts_reach_later_sections_and_later_workers() -> None:
    _, first, _, second = run(sections("fact_teller", "fact_reader", "dying", "fact_reader"))
    assert [first.records[0].measured, second.records[0].measured] == [4.0, 4.0]


def test_a_dry_run_cannot_tell_a_time() -> None:
    (outcome,) = run(sections("timing_in_a_dry_run"))
    assert outcome.status == "failed" and outcome.records == []
    (outcome,) = run(sections("timing_in_a_dry_run"), dry=False)
    assert outcome.status == "done"


def test_a_time_that_was_not_measured_is_not_shown_as_one() -> None:
    outcome = Outcome("s", "done", 1.0, "", [Record("s", "copy", "us", None)])
    assert figures_grid([outcome], dry=True).rows[0][4] == "dry"
    assert figures_grid([outcome], dry=False).rows[0][4] == "-"
    rows = goals_grid([], dry=False).rows
    assert [row[0] for row in rows] == [goal.key for goal in GOALS]
    assert {row[5] for row in rows} == {"not measured"}


@pytest.mark.parametrize(
    ("key", "measured", "met"), [("K5", 7.9, True), ("K5", 8.1, False), ("K1", 0.79, False)]
)
def test_a_goal_is_judged_by_its_limit(key: str, measured: float, met: bool) -> None:
    outcome = Outcome("s", "done", 1.0, "", [goal_record("s", key, measured)])
    row = next(row for row in goals_grid([outcome], dry=False).rows if row[0] == key)
    assert row[6] == ("met" if met else "NOT MET")


def test_all_sections_fit_into_eight_minutes_in_the_order_of_their_worth() -> None:
    assert SECTIONS[0].name == "ceilings"
    assert sum(section.budget_s for section in SECTIONS) <= 8 * 60 + 60
