"""What a rollout does next, from what its gates found. Pure; knows nothing of SQL.

Invariants: one gate that fails is enough to go back, whatever others say; a step is left upwards
only after it has soaked and every gate has passed on samples of that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from app.rollouts.gates import Finding, Gate, Sample, Verdict, judge
from app.rollouts.golden import GOLDEN, GoldenOutcome, judge_golden
from app.rollouts.tables import Rollout


class Next(StrEnum):
    WAIT = "wait"
    ADVANCE = "advance"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Decision:
    """`findings`: one for each gate, in order."""

    next: Next
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> list[Finding]:
        return [each for each in self.findings if each.verdict is Verdict.FAIL]


def decide(rollout: Rollout, samples: Sequence[Sample], now: datetime) -> Decision:
    """For a rollout that runs. Samples of before its present step do not count.

    With all the samples that are kept this takes tens of milliseconds: in a thread.
    """
    since = rollout.step_since.timestamp()
    recent = [each for each in samples if each.at_s >= since]
    baseline = [each for each in recent if each.version_id == rollout.from_version_id]
    candidate = [each for each in recent if each.version_id == rollout.to_version_id]
    outcome = golden_outcome(rollout)
    findings = tuple(
        judge_golden(gate, outcome)
        if gate.metric == GOLDEN
        else judge(gate, baseline, candidate, now.timestamp())
        for gate in gates_of(rollout)
    )
    if any(each.verdict is Verdict.FAIL for each in findings):
        return Decision(Next.FAIL, findings)
    has_soaked = now >= rollout.step_since + timedelta(seconds=rollout.soak_s)
    if has_soaked and all(each.verdict is Verdict.PASS for each in findings):
        return Decision(Next.ADVANCE, findings)
    return Decision(Next.WAIT, findings)


def gates_of(rollout: Rollout) -> list[Gate]:
    return [Gate(**gate) for gate in rollout.gates]


def golden_outcome(rollout: Rollout) -> GoldenOutcome | None:
    """None as long as its golden prompts have not been asked."""
    return None if rollout.golden_results is None else GoldenOutcome.of(rollout.golden_results)


def share_of(rollout: Rollout) -> int:
    """The candidate's share at the present step, in percent."""
    return rollout.ladder[rollout.step]
