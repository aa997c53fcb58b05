"""What `bench.gpu` found out: one record a figure, and the goals that figures are held against.

Knows nothing of how a figure was measured, nor of torch. Invariant: a figure that was not
measured is None and is shown as such; a dry run measures no time.
"""

from __future__ import annotations

from dataclasses import dataclass

TIME_UNITS = frozenset({"us", "ms", "s", "TB/s", "TFLOP/s", "tok/s", "share", "x", "%"})
"""Units of everything that a clock decides."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit that was set before anything was measured, and what we expected to see."""

    key: str
    text: str
    unit: str
    limit: float
    stretch: float
    predicted: float | None
    at_least: bool = False

    def is_met(self, measured: float) -> bool:
        return measured >= self.limit if self.at_least else measured <= self.limit


GOALS = (
    Goal("K1", "decode 64 x 8k, of copy bandwidth", "share", 0.80, 0.88, 0.85, at_least=True),
    Goal("K2a", "decode 64 x 1k, of copy bandwidth", "share", 0.70, 0.80, 0.75, at_least=True),
    Goal("K2b", "decode 1 x 32k, of copy bandwidth", "share", 0.60, 0.70, 0.65, at_least=True),
    Goal("K3", "decode 63 x 1k + 1 x 32k, of copy", "share", 0.65, 0.75, 0.70, at_least=True),
    Goal("K4", "beside vLLM, SGLang, FlashInfer (not there)", "x", 1.0, 1.1, None, at_least=True),
    Goal("K5", "decode 1 x 1k, merge included", "us", 8.0, 5.0, 7.0),
    Goal("K6", "LoRA of 4 sites x 32 layers, 64 of rank 16", "ms", 1.8, 1.55, 1.78),
    Goal("K7", "the same, rank 64", "ms", 6.3, 5.7, 6.2),
    Goal("K8", "mixed ranks over equal ranks of the same sum", "x", 1.15, 1.05, 1.10),
    Goal("K9a", "step overhead of 1 adapter, batch 1", "%", 10.0, 6.0, 10.0),
    Goal("K9b", "step overhead of 1 adapter, batch 64", "%", 7.0, 4.0, 7.0),
    Goal("K10a", "step overhead of 64 of rank 16, 1k", "%", 33.0, 28.0, 32.0),
    Goal("K10b", "step overhead of 64 of rank 16, 8k", "%", 10.0, 8.0, 9.0),
    Goal("K11a", "step overhead of 32 of rank 16, 1k", "%", 22.0, 18.0, 21.0),
    Goal("K11b", "step overhead of 64 q/v of rank 16, 1k", "%", 9.0, 6.0, 8.0),
    Goal("K12", "step without LoRA rows, adapters loaded", "%", 0.5, 0.0, 0.0),
    Goal("K13", "accuracy in bfloat16, worst op", "rel", 5e-3, 5e-3, 2.5e-3),
    Goal("K14", "LoRA part beside PEFT's adapter_names", "x", 20.0, 50.0, 50.0, at_least=True),
)


@dataclass(frozen=True, slots=True)
class Record:
    """One figure. `floor_share`: the roofline's time over the measured one; None if unknown.

    `measured` is None where nothing was measured. `passed` is None where nothing is promised.
    """

    section: str
    what: str
    unit: str
    measured: float | None
    predicted: float | None = None
    floor_share: float | None = None
    goal: str | None = None
    passed: bool | None = None
    note: str = ""


def goal_record(section: str, key: str, measured: float | None, note: str = "") -> Record:
    """The record of goal `key`, judged if it was measured."""
    goal = next(goal for goal in GOALS if goal.key == key)
    passed = None if measured is None else goal.is_met(measured)
    return Record(section, goal.text, goal.unit, measured, goal.predicted, None, key, passed, note)
