"""Holds a kernel's results against float64, and bits against bits.

Knows nothing of which kernel it was. An error is relative to the output's scale: the largest
difference over the largest value. Invariant: NaN never passes, and neither does an exception.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.gpu_worker import Bench

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 5e-3}
NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
WORST = "worst bfloat16 error"
ALL_EQUAL = "all bits equal"
RAISED = "checks that raised"


def dtypes(*, dry: bool) -> list[torch.dtype]:
    """Triton's interpreter gets bfloat16 wrong (the tests have a shim); a dry run leaves it out."""
    return [torch.float32] if dry else [torch.bfloat16, torch.float16, torch.float32]


class Checker:
    """Reports each check, and keeps what goal K13 asks for as facts."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._worst = float(bench.facts.get(WORST, 0.0))
        self._all_equal = bool(bench.facts.get(ALL_EQUAL, True))

    def close(self, what: str, got: Tensor, want: Tensor) -> None:
        """`want` in float64; judged by the tolerance of `got`'s dtype."""
        want = want.to(got.device)
        error = float((got.double() - want).abs().max() / want.abs().max())
        passed = error <= TOLERANCES[got.dtype]
        self._bench.report(f"{what}, {NAMES[got.dtype]}", "rel", error, passed=passed)
        if got.dtype == torch.bfloat16:
            self._worst = max(self._worst, error if error == error else 1.0)
            self._bench.tell_fact(WORST, self._worst)

    def equal(self, what: str, got: Tensor, want: Tensor) -> None:
        """Counts elements whose bits differ."""
        size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.itemsize]
        want = want.to(got.device)
        differing = int((got.contiguous().view(size) != want.contiguous().view(size)).sum())
        self._bench.report(what, "bits", float(differing), passed=differing == 0)
        self._all_equal &= differing == 0
        self._bench.tell_fact(ALL_EQUAL, self._all_equal)

    def attempt(self, what: str, check: Callable[[], None]) -> None:
        """Run one check; what it raises is its result, so that the others run too."""
        try:
            check()
        except Exception as error:  # a kernel that cannot be compiled is a finding
            note = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            self._bench.report(what, "rel", None, passed=False, note=note)
            self._bench.tell_fact(RAISED, self._bench.facts.get(RAISED, 0) + 1)

    def report_accuracy(self) -> None:
        """Goal K13, once all checks have run."""
        if WORST not in self._bench.facts:
            self._bench.report_goal("K13", None, "bfloat16 needs a GPU")
            return
        if num_raised := self._bench.facts.get(RAISED, 0):
            self._bench.report_goal("K13", None, f"{num_raised} checks raised")
            return
        note = "" if self._all_equal else "bits differed where they must not"
        self._bench.report_goal("K13", self._worst if self._all_equal else 1.0, note)
