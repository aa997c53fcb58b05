"""Whether a candidate is worse than what it is to replace: the statistics of a rollout's gates.

Knows nothing of rollouts, SQL or clocks. Invariant: a gate fails where the data show, with a
confidence of `Z` standard errors on either side, that its limit is passed, and never because they
are few or noisy; where they are too few to tell, it waits.

A rate has Wilson's interval (Wilson 1927), a median the distribution-free one of order statistics:
neither assumes anything of how latencies are distributed. A gate is looked at again and again as
data come in, so that `Z` is far above the 1.96 of one look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Z = 4.0
MIN_SAMPLES = 20  # below that a median's interval is unbounded

Metric = Literal[
    "error_rate",
    "ttft_ms",
    "inter_token_ms",
    "invalid_json_rate",
    "length_drift",
    "golden_failure_rate",
]


@dataclass(frozen=True, slots=True)
class Sample:
    """One request that was answered. `is_json`: None where its text was not looked at."""

    at_s: float
    version_id: str
    is_error: bool
    ttft_ms: float | None = None
    inter_token_ms: float | None = None
    num_tokens: int = 0
    is_json: bool | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """Either `max`, or `max_regression_pct` over the baseline; over the last `window_s`."""

    metric: Metric
    max: float | None = None
    max_regression_pct: float | None = None
    window_s: int = 3600
    min_samples: int = 100


class Verdict(StrEnum):
    PASS = "pass"
    WAIT = "wait"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True)
class Finding:
    """What a gate found. Intervals are None where there are too few samples.

    `reason`: why there is nothing to be found, of a gate that fails for it.
    """

    gate: Gate
    verdict: Verdict
    num_candidate: int
    num_baseline: int
    candidate: Interval | None = None
    baseline: Interval | None = None
    reason: str | None = None


def judge(
    gate: Gate, baseline: Sequence[Sample], candidate: Sequence[Sample], now_s: float
) -> Finding:
    """Look at the samples of the gate's window, of both versions."""
    since = now_s - gate.window_s
    ours = _values(gate.metric, [each for each in candidate if each.at_s >= since])
    theirs = _values(gate.metric, [each for each in baseline if each.at_s >= since])
    needed = max(gate.min_samples, MIN_SAMPLES)
    is_relative = gate.max_regression_pct is not None
    if len(ours) < needed or (is_relative and len(theirs) < needed):
        return Finding(gate, Verdict.WAIT, len(ours), len(theirs))
    found = _interval(gate.metric, ours)
    before = _interval(gate.metric, theirs) if is_relative else None
    verdict = Verdict.FAIL if _is_passed(gate, found, before) else Verdict.PASS
    return Finding(gate, verdict, len(ours), len(theirs), found, before)


def wilson(num_hits: int, num_trials: int, z: float = Z) -> Interval:
    """The interval of a rate of which `num_hits` in `num_trials` were seen."""
    rate = num_hits / num_trials
    spread = z * math.sqrt(rate * (1 - rate) / num_trials + z * z / (4 * num_trials**2))
    scale = 1 + z * z / num_trials
    middle = (rate + z * z / (2 * num_trials)) / scale
    half = spread / scale
    return Interval(max(0.0, middle - half), rate, min(1.0, middle + half))


def median(values: Sequence[float], z: float = Z) -> Interval:
    """The interval of a median, from the ranks that a binomial of a half may take."""
    ordered = sorted(values)
    num = len(ordered)
    half = z * math.sqrt(num) / 2
    low, high = math.floor(num / 2 - half), math.ceil(num / 2 + half)
    return Interval(
        ordered[low - 1] if low >= 1 else -math.inf,
        ordered[num // 2],
        ordered[high] if high < num else math.inf,
    )


def _is_passed(gate: Gate, candidate: Interval, baseline: Interval | None) -> bool:
    """Whether the gate's limit is passed for sure."""
    if gate.max is not None:
        return candidate.low > gate.max
    assert gate.max_regression_pct is not None and baseline is not None
    share = gate.max_regression_pct / 100
    is_above = candidate.low > baseline.high * (1 + share)
    if gate.metric != "length_drift":
        return is_above
    return is_above or candidate.high < baseline.low * (1 - share)


def _interval(metric: Metric, values: Sequence[float]) -> Interval:
    if metric in ("error_rate", "invalid_json_rate"):
        return wilson(round(sum(values)), len(values))
    return median(values)


def _values(metric: Metric, samples: Sequence[Sample]) -> list[float]:
    """The numbers that a metric is made of; an answer that failed has only failed."""
    if metric == "error_rate":
        return [float(each.is_error) for each in samples]
    answered = [each for each in samples if not each.is_error]
    match metric:
        case "ttft_ms":
            return [each.ttft_ms for each in answered if each.ttft_ms is not None]
        case "inter_token_ms":
            return [each.inter_token_ms for each in answered if each.inter_token_ms is not None]
        case "invalid_json_rate":
            return [float(not each.is_json) for each in answered if each.is_json is not None]
        case "length_drift":
            return [float(each.num_tokens) for each in answered]
        case "golden_failure_rate":
            raise AssertionError("golden prompts are no requests of anybody: app.rollouts.golden")
