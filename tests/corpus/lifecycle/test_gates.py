"""Each gate of a rollout stops a candidate that is worse, and none that is merely unlucky.

Seeded draws in virtual time, looked at again and again as they come in. TEST_FAULTS=soak: ten times
as many.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence

import pytest

from app.rollouts.gates import Gate, Sample, Verdict, judge, median, wilson

OLD, NEW = "ver_old", "ver_new"
NUM_ROLLOUTS = 600 if os.environ.get("TEST_FAULTS") == "soak" else 60
NUM_SAMPLES = 1_000  # of each version, by the end of a step
LOOK_EVERY = 50  # samples

Draw = Callable[[random.Random, str, float], Sample]


def draw(
    rng: random.Random,
    version_id: str,
    at_s: float,
    *,
    error_rate: float = 0.01,
    slowness: float = 1.0,
    invalid_json: float = 0.02,
    length: float = 1.0,
) -> Sample:
    """A request as they are: latencies and lengths are lognormal, some fail."""
    if rng.random() < error_rate:
        return Sample(at_s, version_id, is_error=True)
    return Sample(
        at_s,
        version_id,
        is_error=False,
        ttft_ms=slowness * rng.lognormvariate(math.log(200), 0.6),
        inter_token_ms=slowness * rng.lognormvariate(math.log(20), 0.4),
        num_tokens=max(1, round(length * rng.lognormvariate(math.log(150), 0.7))),
        is_json=rng.random() >= invalid_json,
    )


def like_before(rng: random.Random, version_id: str, at_s: float) -> Sample:
    return draw(rng, version_id, at_s)


def failing(rng: random.Random, version_id: str, at_s: float) -> Sample:
    return draw(rng, version_id, at_s, error_rate=0.10)


def slow(rng: random.Random, version_id: str, at_s: float) -> Sample:
    return draw(rng, version_id, at_s, slowness=2.0)


def babbling(rng: random.Random, version_id: str, at_s: float) -> Sample:
    return draw(rng, version_id, at_s, length=2.5)


def terse(rng: random.Random, version_id: str, at_s: float) -> Sample:
    return draw(rng, version_id, at_s, length=0.3)


def garbling(rng: random.Random, version_id: str, at_s: float) -> Sample:
    return draw(rng, version_id, at_s, invalid_json=0.20)


def first_failure(gate: Gate, candidate: Draw, seed: int) -> int | None:
    """After how many of its requests the candidate is stopped; None where it never is."""
    rng = random.Random(seed)
    old: list[Sample] = []
    new: list[Sample] = []
    for number in range(1, NUM_SAMPLES + 1):
        old.append(draw(rng, OLD, float(number)))
        new.append(candidate(rng, NEW, float(number)))
        if number % LOOK_EVERY == 0:
            found = judge(gate, old, new, float(number))
            if found.verdict is Verdict.FAIL:
                return number
    return None


REGRESSIONS: Sequence[tuple[Gate, Draw]] = [
    (Gate("error_rate", max=0.03, window_s=10**6), failing),
    (Gate("error_rate", max_regression_pct=50, window_s=10**6), failing),
    (Gate("ttft_ms", max=300, window_s=10**6), slow),
    (Gate("ttft_ms", max_regression_pct=20, window_s=10**6), slow),
    (Gate("inter_token_ms", max=30, window_s=10**6), slow),
    (Gate("inter_token_ms", max_regression_pct=20, window_s=10**6), slow),
    (Gate("invalid_json_rate", max=0.05, window_s=10**6), garbling),
    (Gate("invalid_json_rate", max_regression_pct=50, window_s=10**6), garbling),
    (Gate("length_drift", max_regression_pct=30, window_s=10**6), babbling),
    (Gate("length_drift", max_regression_pct=30, window_s=10**6), terse),
]


def name(case: object) -> str:
    if isinstance(case, Gate):
        return f"{case.metric}-{'max' if case.max is not None else 'regression'}"
    return getattr(case, "__name__", "")


@pytest.mark.parametrize(("gate", "worse"), REGRESSIONS, ids=name)
def test_a_gate_stops_an_injected_regression(gate: Gate, worse: Draw) -> None:
    stopped = [first_failure(gate, worse, seed) for seed in range(10)]
    assert all(number is not None for number in stopped), stopped


@pytest.mark.parametrize("gate", [gate for gate, _ in REGRESSIONS[:9]], ids=name)
def test_a_gate_does_not_stop_a_candidate_that_is_merely_noisy(gate: Gate) -> None:
    stopped = [first_failure(gate, like_before, seed) for seed in range(NUM_ROLLOUTS)]
    assert [number for number in stopped if number is not None] == []


def test_control_comparing_bare_figures_would_stop_noise() -> None:
    """What a gate does without its intervals: two medians differ by chance."""
    rng = random.Random(1)
    stopped = 0
    for _ in range(NUM_ROLLOUTS):
        old, new = ([rng.lognormvariate(0, 0.6) for _ in range(100)] for _ in range(2))
        stopped += median(new).value > 1.1 * median(old).value
    assert stopped > NUM_ROLLOUTS / 20


def test_a_gate_waits_until_it_has_enough_of_both_versions() -> None:
    rng = random.Random(2)
    gate = Gate("ttft_ms", max_regression_pct=20, min_samples=50, window_s=10**6)
    many = [draw(rng, OLD, 0.0, error_rate=0) for _ in range(50)]
    few = many[:49]
    assert judge(gate, many, few, 1.0).verdict is Verdict.WAIT
    assert judge(gate, few, many, 1.0).verdict is Verdict.WAIT
    assert judge(gate, many, many, 1.0).verdict is Verdict.PASS
    alone = Gate("ttft_ms", max=10_000, min_samples=50)
    assert judge(alone, [], many, 1.0).verdict is Verdict.PASS


def test_only_the_gates_window_counts() -> None:
    rng = random.Random(3)
    gate = Gate("error_rate", max=0.05, window_s=10, min_samples=20)
    bad = [draw(rng, NEW, 0.0, error_rate=1.0) for _ in range(100)]
    good = [draw(rng, NEW, 95.0, error_rate=0.0) for _ in range(100)]
    assert judge(gate, [], bad, 5.0).verdict is Verdict.FAIL
    assert judge(gate, [], bad + good, 100.0).verdict is Verdict.PASS
    assert judge(gate, [], bad, 100.0).verdict is Verdict.WAIT


def test_intervals_hold_the_truth_as_often_as_they_should() -> None:
    """At 1.96 standard errors: 95 % of the time, give or take."""
    rng = random.Random(4)
    rates, medians = 0, 0
    for _ in range(600):
        hits = sum(rng.random() < 0.1 for _ in range(200))
        rate = wilson(hits, 200, z=1.96)
        rates += rate.low <= 0.1 <= rate.high
        middle = median([rng.gauss(5, 1) for _ in range(101)], z=1.96)
        medians += middle.low <= 5 <= middle.high
    assert 0.93 <= rates / 600 <= 0.98
    assert 0.93 <= medians / 600 <= 0.99
