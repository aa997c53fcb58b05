"""What is expected of an answer to a golden prompt, and when the gate of all of them fails."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from app.rollouts.expectations import (
    MAX_ANSWER_CHARS,
    MAX_PATTERN_CHARS,
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_PATTERNS,
    MAX_SCHEMA_VALUES,
    ExpectationError,
    expects_json,
    expects_pattern,
    expects_text,
)
from app.rollouts.gates import Gate, Verdict
from app.rollouts.golden import MAX_ASKS, GoldenOutcome, judge_golden

NUM_ROLLOUTS = 300
NUM_PROMPTS = 40


def nested(depth: int) -> dict[str, Any]:
    """A schema of so many levels."""
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


def patterns(num: int) -> dict[str, Any]:
    return {f"^{each}": True for each in range(num)}


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
        {"enum": [*range(MAX_SCHEMA_VALUES)]},
        {"pattern": "a" * (MAX_PATTERN_CHARS + 1)},
        {"format": "regex"},
        {"items": {"patternProperties": patterns(MAX_SCHEMA_PATTERNS + 1)}},
        {"properties": {str(each): {"pattern": "a"} for each in range(MAX_SCHEMA_PATTERNS + 1)}},
        nested(MAX_SCHEMA_DEPTH + 1),
        nested(100_000),
    ],
)
def test_a_schema_that_refers_to_something_or_costs_too_much_is_refused(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(ExpectationError):
        expects_json(schema)


def test_control_a_schema_at_each_of_the_bounds_is_accepted() -> None:
    for schema in (
        nested(MAX_SCHEMA_DEPTH),
        {"patternProperties": patterns(MAX_SCHEMA_PATTERNS)},
        {"enum": [*range(MAX_SCHEMA_VALUES - 2)]},
        {"pattern": "a" * MAX_PATTERN_CHARS},
    ):
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


def test_an_answer_longer_than_any_of_sense_is_not_what_was_expected() -> None:
    for is_met in (expects_pattern("a"), expects_json({"type": "string"})):
        assert is_met(json.dumps("a" * (MAX_ANSWER_CHARS - 2)))
        assert not is_met(json.dumps("a" * (MAX_ANSWER_CHARS - 1)))


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


@pytest.mark.parametrize("limit", [{"max": 1.0}, {"max_regression_pct": 100}])
def test_a_gate_whose_prompts_cannot_be_asked_fails_and_says_why(limit: dict[str, float]) -> None:
    gate = Gate("golden_failure_rate", **limit)
    found = GoldenOutcome.of_none_asked(3, 0.0, "golden_prompts_unreadable")
    kept = GoldenOutcome.of(json.loads(json.dumps(found.stored())))
    finding = judge_golden(gate, kept)
    assert (finding.verdict, finding.reason) == (Verdict.FAIL, "golden_prompts_unreadable")
    # The control: what failed all the same, but was asked, is judged by the gate alone.
    assert judge_golden(gate, outcome(3, 0, num=3)).verdict is Verdict.PASS


def test_a_process_that_knows_of_no_problems_finds_a_failure_too() -> None:
    stored = GoldenOutcome.of_none_asked(3, 0.0, "golden_prompts_unreadable").stored()
    del stored["problem"]
    gate = Gate("golden_failure_rate", max_regression_pct=10)
    assert judge_golden(gate, GoldenOutcome.of(stored)).verdict is Verdict.FAIL


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
