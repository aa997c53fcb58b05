"""What is expected of an answer to a golden prompt, and when the gate of all of them fails."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from app.rollouts.expectations import (
    ExpectationError,
    expects_json,
    expects_pattern,
    expects_text,
)
from app.rollouts.gates import Gate, Verdict
from app.rollouts.golden import MAX_ASKS, GoldenOutcome, judge_golden

NUM_ROLLOUTS = 300
NUM_PROMPTS = 40


@pytest.mark.parametrize(
    ("expectation", "right", "wrong"),
    [
        (expects_text("Paris"), " Paris\n", "Paris!"),
        (expects_pattern("^[0-9]+$"), "42", "42 or so"),
        (expects_pattern("Par(is|ma)"), "It is Parma.", "It is Rome."),
        (expects_json({"type": "object", "required": ["a"]}), '{"a": 1}', '{"b": 1}'),
        (expects_json({"type": "array", "items": {"type": "integer"}}), "[1, 2]", "[1, 2"),
        (expects_json({"properties": {"a": {"pattern": "^x"}}}), '{"a": "xy"}', '{"a": "yx"}'),
    ],
)
def test_an_answer_is_what_was_expected_or_not(
    expectation: Callable[[str], bool], right: str, wrong: str
) -> None:
    assert expectation(right) and not expectation(wrong)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "http://169.254.169.254/schema.json"},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"allOf": [{"$dynamicRef": "#node"}]},
        {"unevaluatedProperties": False},
        {"$schema": "http://169.254.169.254/schema.json"},
        {"type": "nonsense"},
        {"pattern": "(a"},
        {"pattern": "(?=a)b"},
        {"pattern": "((a{1000}){1000}){1000}"},
        {"description": "x" * 9000},
    ],
)
def test_a_schema_that_refers_to_something_or_costs_too_much_is_refused(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(ExpectationError):
        expects_json(schema)


@pytest.mark.parametrize("pattern", ["(a", "(?=a)", r"(a)\1", "x" * 513])
def test_a_pattern_that_re2_has_not_is_refused(pattern: str) -> None:
    with pytest.raises(ExpectationError):
        expects_pattern(pattern)


def test_a_pattern_that_would_backtrack_for_ever_does_not() -> None:
    evil = "a" * 5_000
    assert not expects_pattern("^(a+)+$")(evil + "!")
    assert not expects_json({"pattern": "^(a+)+$"})(json.dumps(evil + "!"))


def test_an_answer_nested_without_bottom_is_not_what_was_expected() -> None:
    expectation = expects_json({"type": "array"})
    assert not expectation("[" * 100_000)
    assert not expectation("[" * 5_000 + "]" * 5_000)


def outcome(failed: int, failed_before: int, num: int = NUM_PROMPTS) -> GoldenOutcome:
    return GoldenOutcome(num, 0.0, tuple(range(failed)), tuple(range(failed_before)))


@pytest.mark.parametrize(
    ("gate", "found", "verdict"),
    [
        (Gate("golden_failure_rate", max=0.0), outcome(0, 9), Verdict.PASS),
        (Gate("golden_failure_rate", max=0.0), outcome(1, 9), Verdict.FAIL),
        (Gate("golden_failure_rate", max=0.1), outcome(4, 0), Verdict.PASS),
        (Gate("golden_failure_rate", max=0.1), outcome(5, 0), Verdict.FAIL),
        (Gate("golden_failure_rate", max_regression_pct=10), outcome(4, 0), Verdict.PASS),
        (Gate("golden_failure_rate", max_regression_pct=10), outcome(5, 0), Verdict.FAIL),
        (Gate("golden_failure_rate", max_regression_pct=0), outcome(9, 9), Verdict.PASS),
        (Gate("golden_failure_rate", max_regression_pct=0), outcome(40, 40), Verdict.PASS),
        (Gate("golden_failure_rate", max_regression_pct=0), outcome(10, 9), Verdict.FAIL),
        (Gate("golden_failure_rate", max_regression_pct=0), None, Verdict.WAIT),
    ],
)
def test_a_gate_of_golden_prompts_fails_where_more_are_lost_than_it_allows(
    gate: Gate, found: GoldenOutcome | None, verdict: Verdict
) -> None:
    assert judge_golden(gate, found).verdict is verdict


def asked(rng: random.Random, error_rate: float, num_lost: int, num_asks: int) -> list[int]:
    """The prompts failed by a version that gets each answer wrong by chance, and some always."""
    return [
        place
        for place in range(NUM_PROMPTS)
        if place < num_lost or all(rng.random() < error_rate for _ in range(num_asks))
    ]


def stopped(*, num_lost: int, num_asks: int, error_rate: float = 0.15) -> int:
    """How many of `NUM_ROLLOUTS` the gate stops."""
    rng = random.Random(7)
    gate = Gate("golden_failure_rate", max_regression_pct=10)
    num = 0
    for _ in range(NUM_ROLLOUTS):
        before = asked(rng, error_rate, 0, num_asks)
        failed = asked(rng, error_rate, num_lost, num_asks)
        found = GoldenOutcome(NUM_PROMPTS, 0.0, tuple(failed), tuple(before))
        num += judge_golden(gate, found).verdict is Verdict.FAIL
    return num


def test_a_gate_of_golden_prompts_does_not_stop_a_candidate_that_is_merely_noisy() -> None:
    assert stopped(num_lost=0, num_asks=MAX_ASKS) == 0


def test_a_gate_of_golden_prompts_stops_an_injected_regression_each_time() -> None:
    assert stopped(num_lost=8, num_asks=MAX_ASKS) == NUM_ROLLOUTS


def test_control_asking_once_would_stop_noise() -> None:
    assert stopped(num_lost=0, num_asks=1) > NUM_ROLLOUTS / 20
