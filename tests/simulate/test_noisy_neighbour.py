"""A tenant that asks for fifty times its share costs the others little of their time."""

from __future__ import annotations

import pytest

import engine.core
from tests.simulate.conftest import Record
from tests.simulate.noisy_neighbour import EXCESS, run
from tests.simulate.wrong_engines import FirstCome

SECONDS = 60.0
SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_noisy_tenant_raises_the_others_time_to_first_token_by_a_fifth_at_most(
    seed: int, record_figure: Record
) -> None:
    fair = run(seed, SECONDS, is_noisy=False)
    noisy = run(seed, SECONDS, is_noisy=True)
    assert noisy.num_requests > 1000
    assert noisy.ttft_p99_s <= 1.2 * fair.ttft_p99_s
    assert noisy.tokens_per_s >= 0.95 * fair.tokens_per_s
    record_figure(
        f"tenant at {EXCESS}x: others' p99 TTFT {fair.ttft_p99_s:.3f} -> {noisy.ttft_p99_s:.3f} s, "
        f"tokens/s {fair.tokens_per_s:.0f} -> {noisy.tokens_per_s:.0f}"
    )


def test_control_first_come_first_served_lets_it_push_the_others_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fair = run(0, 20.0, is_noisy=False)
    monkeypatch.setattr(engine.core, "FairOrder", FirstCome)
    noisy = run(0, 20.0, is_noisy=True)
    assert noisy.ttft_p99_s > 5 * fair.ttft_p99_s
