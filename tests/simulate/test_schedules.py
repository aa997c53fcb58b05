"""Ten thousand random schedules: the books are right after every step, and everyone is answered."""

from __future__ import annotations

from dataclasses import asdict

import pytest

import engine.core
from tests.simulate.conftest import RecordPart
from tests.simulate.schedules import Figures, run_schedule
from tests.simulate.wrong_engines import FirstCome, LeakyHoldings

NUM_SCHEDULES = 10_000
NUM_PARTS = 20
PART = NUM_SCHEDULES // NUM_PARTS
KINDS = ["aborted", "stopped", "failed_loads", "refused", "preempted", "swapped", "contests"]


def run_all(seeds: range) -> Figures:
    figures = Figures()
    for seed in seeds:
        figures.add(run_schedule(seed))
    return figures


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_accepted_request_ends_once_the_books_agree_and_service_stays_in_its_bound(
    part: int, record_part: RecordPart
) -> None:
    figures = run_all(range(part * PART, (part + 1) * PART))
    assert figures.num_schedules == PART
    assert figures.worst_of_bound <= 1.0
    missing = [kind for kind in KINDS if getattr(figures, f"num_{kind}") == 0]
    assert not missing, "a kind of event that no schedule has"
    record_part(asdict(figures))


def test_control_first_come_first_served_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [seed for seed in range(300) if run_schedule(seed).num_contests]
    monkeypatch.setattr(engine.core, "FairOrder", FirstCome)
    broken = [seed for seed in seeds if run_schedule(seed).worst_of_bound > 1]
    assert len(broken) > len(seeds) // 2


def test_control_a_leaked_page_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.core, "Holdings", LeakyHoldings)
    with pytest.raises(AssertionError, match="is held by"):
        run_all(range(50))


def test_the_same_seed_gives_the_same_steps() -> None:
    assert [run_schedule(seed) for seed in range(20)] == [run_schedule(seed) for seed in range(20)]
