"""Rollouts as the API shows and takes them."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from app.adapters.alias_schemas import VersionName
from app.adapters.weighted import WHOLE, StickyBy
from app.bodies import Body, Line, Timestamp
from app.etags import Tagged
from app.rollouts.decision import Decision, golden_outcome, share_of
from app.rollouts.gates import MIN_SAMPLES, Finding, Gate, Interval, Metric
from app.rollouts.golden import GOLDEN, GoldenOutcome
from app.rollouts.golden_schemas import MAX_PROMPTS, GoldenPrompt
from app.rollouts.tables import Rollout

MAX_GATES = 20
MAX_STEPS = 20
MAX_SOAK_S = 7 * 86_400


class GateBody(Body):
    """Exactly one of `max` and `max_regression_pct`; `length_drift` has the second only."""

    metric: Metric
    max: Annotated[float, Field(ge=0)] | None = None
    max_regression_pct: Annotated[float, Field(ge=0, le=10_000)] | None = None
    window_s: Annotated[int, Field(ge=1, le=MAX_SOAK_S)] = 3600
    min_samples: Annotated[int, Field(ge=MIN_SAMPLES, le=10_000)] = 100

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if (self.max is None) == (self.max_regression_pct is None):
            raise ValueError("exactly one of max and max_regression_pct is needed")
        if self.metric == "length_drift" and self.max_regression_pct is None:
            raise ValueError("length_drift is a regression")
        return self

    @property
    def gate(self) -> Gate:
        return Gate(**self.model_dump())


class RolloutCreate(Body):
    """From where `alias` points now, which is one version, to `to`.

    `ladder`: the candidate's share at each step, in percent; it grows and ends with 100. A step is
    left after `soak_s`, once every gate has passed. `golden`: prompts that both versions are asked,
    for gates of `golden_failure_rate`; without any, those that `to` brought with it.
    """

    alias: Line
    to: VersionName
    ladder: list[int] = Field(default=[5, 25, 50, WHOLE], min_length=1, max_length=MAX_STEPS)
    soak_s: Annotated[int, Field(ge=0, le=MAX_SOAK_S)] = 600
    gates: list[GateBody] = Field(default=[], max_length=MAX_GATES)
    golden: list[GoldenPrompt] = Field(default=[], max_length=MAX_PROMPTS)
    on_fail: Literal["rollback", "pause"] = "rollback"
    sticky_by: StickyBy | None = None

    @model_validator(mode="after")
    def _climbs(self) -> Self:
        if any(later <= earlier for earlier, later in pairwise([0, *self.ladder])):
            raise ValueError("the ladder does not grow")
        if self.ladder[-1] != WHOLE:
            raise ValueError(f"the ladder does not end with {WHOLE}")
        return self

    @model_validator(mode="after")
    def _judges_what_is_asked(self) -> Self:
        if self.golden and all(gate.metric != GOLDEN for gate in self.gates):
            raise ValueError(f"golden prompts need a gate of {GOLDEN}")
        return self


class GoldenView(BaseModel):
    """What came of `num` golden prompts: which of them, from 0 on, each version failed.

    `error`: why they could not be asked, which its gate takes for a failure of all.
    """

    num: int
    failed: list[int]
    failed_before: list[int]
    asked_at: int
    error: str | None

    @classmethod
    def of(cls, outcome: GoldenOutcome) -> Self:
        return cls(
            num=outcome.num,
            failed=[*outcome.failed],
            failed_before=[*outcome.failed_before],
            asked_at=int(outcome.asked_s),
            error=outcome.problem,
        )


class RolloutView(Tagged):
    """`share`: of the candidate, in percent. `verdict`: why it ended or was paused by itself.

    `golden`: what came of the golden prompts, once they were asked. All of it is its state: whoever
    promotes means the step that was looked at.
    """

    object: Literal["rollout"] = "rollout"
    id: str
    adapter_id: str
    alias: str
    from_version_id: str
    to_version_id: str
    ladder: list[int]
    step: int
    share: int
    soak_s: int
    gates: list[dict[str, Any]]
    golden: GoldenView | None
    on_fail: str
    sticky_by: str | None
    state: str
    verdict: dict[str, Any] | None
    created: Timestamp
    step_since: Timestamp
    finished: Timestamp | None

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        shares = {"succeeded": WHOLE, "rolled_back": 0, "cancelled": 0}
        outcome = golden_outcome(rollout)
        return cls(
            id=rollout.id,
            adapter_id=rollout.adapter_id,
            alias=rollout.alias,
            from_version_id=rollout.from_version_id,
            to_version_id=rollout.to_version_id,
            ladder=rollout.ladder,
            step=rollout.step,
            share=shares.get(rollout.state, share_of(rollout)),
            soak_s=rollout.soak_s,
            gates=rollout.gates,
            golden=None if outcome is None else GoldenView.of(outcome),
            on_fail=rollout.on_fail,
            sticky_by=rollout.sticky_by,
            state=rollout.state,
            verdict=rollout.verdict,
            created=rollout.created_at,
            step_since=rollout.step_since,
            finished=rollout.finished_at,
        )


class PreviewView(BaseModel):
    """What the rollout would do now: `wait`, `advance` or `fail`; and what each gate says."""

    object: Literal["rollout.preview"] = "rollout.preview"
    rollout: RolloutView
    next: str
    gates: list[dict[str, Any]]

    @classmethod
    def of(cls, rollout: Rollout, decision: Decision) -> Self:
        return cls(
            rollout=RolloutView.of(rollout),
            next=decision.next.value,
            gates=[describe_finding(each) for each in decision.findings],
        )


def describe_finding(finding: Finding) -> dict[str, Any]:
    """A gate and what it found, as JSON values."""
    return {
        "gate": asdict(finding.gate),
        "verdict": finding.verdict.value,
        "num_candidate": finding.num_candidate,
        "num_baseline": finding.num_baseline,
        "candidate": _bounds(finding.candidate),
        "baseline": _bounds(finding.baseline),
        "reason": finding.reason,
    }


def _bounds(interval: Interval | None) -> dict[str, float | None] | None:
    """Without infinities, which JSON has not."""
    if interval is None:
        return None
    return {
        name: None if abs(value) == float("inf") else value
        for name, value in asdict(interval).items()
    }
