"""The fair order in a whole engine, in virtual time; `make simulate` has the same at length."""

from __future__ import annotations

import pytest

import engine.core
from engine.messages import AdapterRef
from tests.builders.engines import make_request
from tests.simulate.cold_adapter import bound_s, wait_for_cold_adapter
from tests.simulate.schedules import Figures, run_schedule
from tests.simulate.world import World
from tests.simulate.wrong_engines import FirstCome, LeakyHoldings


def ref(name: str) -> AdapterRef:
    return AdapterRef(tenant_id=f"ten_{name}", digest=f"sha256:{name}", locator="")


def started(world: World, num_steps: int) -> set[str]:
    for _ in range(num_steps):
        world.step()
    return set(world.runner.started_at)


def test_random_schedules_end_with_right_books_and_service_within_its_bound() -> None:
    figures = Figures()
    for seed in range(32):
        figures.add(run_schedule(seed))
    assert figures.worst_of_bound <= 1.0
    assert figures.num_contests and figures.num_preempted and figures.num_aborted


def test_control_first_come_first_served_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    contested = 31
    assert 0 < run_schedule(contested).worst_of_bound <= 1.0
    monkeypatch.setattr(engine.core, "FairOrder", FirstCome)
    assert run_schedule(contested).worst_of_bound > 1.0


def test_control_a_leaked_page_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.core, "Holdings", LeakyHoldings)
    with pytest.raises(AssertionError, match="is held by"):
        for seed in range(50):
            run_schedule(seed)


def test_whatever_fits_runs_at_once_and_what_does_not_is_passed_over() -> None:
    """Case B03 (vllm-project/vllm#15422): four adapters fit, and requests for a fifth wait."""
    world = World(num_pages=4 * 8 + 12, pages_of=lambda _: 8, max_num_seqs=16)
    names = [None] * 3 + ["L1", "L3", "L2", "L4"] + ["L5"] * 4 + [None] * 2 + ["L1", "L2", "L3"]
    for number, name in enumerate(names):
        adapter = ref(name) if name else None
        world.add(
            make_request(f"{name} {number}", [number + 1], adapter=adapter, tenant_id=f"ten_{name}")
        )
    first = started(world, 2)
    assert {name.split()[0] for name in first} == {"None", "L1", "L2", "L3", "L4"}
    assert len(first) == len(names) - 4, "all but the four for L5"
    world.finish()


def test_a_long_prompt_does_not_make_another_tenants_short_one_wait() -> None:
    world = World(num_pages=60, max_num_batched_tokens=16)
    for number in range(3):
        world.add(make_request(f"long {number}", [1] * 100, tenant_id="ten_long"))
    world.step()
    world.add(make_request("short", [2] * 4, max_tokens=1, tenant_id="ten_short"))
    world.step()
    assert world.ended["short"] == 1, "its prompt came before the rest of the long one"
    world.finish()


def test_a_cold_adapter_is_served_within_the_bound_while_four_hot_ones_are_hammered() -> None:
    waits = [wait_for_cold_adapter(seed, is_one_tenants=True, max_age_s=0.5) for seed in range(3)]
    assert max(waits) <= bound_s(0.5)
