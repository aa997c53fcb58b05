"""Golden prompts of a rollout: how many the candidate fails, beside the version that it is to
replace.

Knows nothing of queues or SQL. The prompts are all there is, and no sample of anything: what is
counted is exact, without intervals. Invariants: a prompt counts as failed where each of several
answers failed, of either version, so that a draw or a near-tie fails none; a gate says nothing
before all prompts were asked, and fails where they never can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from app.rollouts.gates import Finding, Gate, Interval, Verdict

MAX_ASKS = 5  # answers of which one must be right
GOLDEN = "golden_failure_rate"


@dataclass(frozen=True, slots=True)
class GoldenOutcome:
    """Of `num` prompts, by their places: those that each version failed. `asked_s`: since 1970.

    `problem`: a code that says why they cannot be asked at all; then the candidate failed them all.
    """

    num: int
    asked_s: float
    failed: tuple[int, ...]
    failed_before: tuple[int, ...]
    problem: str | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        failed, failed_before = tuple(stored["failed"]), tuple(stored["failed_before"])
        problem = stored.get("problem")
        return cls(stored["num"], stored["asked_s"], failed, failed_before, problem)

    @classmethod
    def of_none_asked(cls, num: int, asked_s: float, problem: str) -> Self:
        """`num`: at least one, where nobody can tell how many there are."""
        # NOTE: a process that knows of no problems judges by the counts, and finds the same.
        return cls(num, asked_s, tuple(range(num)), (), problem)

    def stored(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "failed": [*self.failed], "failed_before": [*self.failed_before]}


def judge_golden(gate: Gate, outcome: GoldenOutcome | None) -> Finding:
    """`max`: of all prompts, the share that may fail. `max_regression_pct`: of those that were
    answered well before, how many percent fewer may be so now.
    """
    if outcome is None:
        return Finding(gate, Verdict.WAIT, 0, 0)
    if outcome.problem is not None:
        return Finding(gate, Verdict.FAIL, 0, 0, reason=outcome.problem)
    failed, before = len(outcome.failed), len(outcome.failed_before)
    if gate.max is not None:
        is_worse = failed > gate.max * outcome.num
    else:
        assert gate.max_regression_pct is not None
        passed_before = outcome.num - before
        is_worse = failed - before > passed_before * gate.max_regression_pct / 100
    return Finding(
        gate,
        Verdict.FAIL if is_worse else Verdict.PASS,
        outcome.num,
        outcome.num,
        _exactly(failed / outcome.num),
        _exactly(before / outcome.num),
    )


def _exactly(rate: float) -> Interval:
    return Interval(rate, rate, rate)
