"""The bench of what comes to a full house: every request that was due is counted once."""

from __future__ import annotations

import pytest

from bench.overload import SETTLE_S, Answered, rate_between, summary


def answered(
    status: int, wait_s: float, retry_after: str | None = None, *, due_at: float = SETTLE_S
) -> Answered:
    return Answered(status, due_at, wait_s, due_at + wait_s, retry_after)


def test_each_request_is_in_one_column() -> None:
    answers = [
        answered(200, 1.0, due_at=0.0),
        answered(200, 3.0),
        answered(503, 0.7, "2", due_at=SETTLE_S / 2),
        answered(503, 0.01, "2"),
        answered(503, 0.02),
        answered(429, 0.5, "soon"),
        answered(0, 9.0),
    ]
    found = summary(answers)
    assert found["statuses"] == {"0": 1, "200": 2, "429": 1, "503": 3}
    assert found["requests"] == sum(found["statuses"].values())
    assert found["refusals_without_retry_after"] == 2
    assert found["refusal_p99_ms"] == pytest.approx(500, rel=0.1)
    assert found["onset_refusal_p99_ms"] == pytest.approx(700)
    assert found["answer_p100_ms"] == 3000


def test_a_rate_counts_what_ended_within_its_time() -> None:
    assert rate_between([0.5, 1.0, 1.9, 2.0], 1.0, 2.0) == 2.0
