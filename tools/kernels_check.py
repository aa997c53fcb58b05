"""`make kernels`: every proof of the Triton kernels that needs no GPU, one after another.

Each step is a command in a process of its own, because Triton decides at its import whether it
interprets. All run, whatever fails; the last line is the verdict, with each step's figures.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CONTROL_CODES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Step:
    """`figure` finds in the output what the verdict repeats: the last match of its group 1."""

    name: str
    arguments: tuple[str, ...]
    figure: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    step: Step
    status: int
    figure: str
    seconds: float

    def words(self) -> str:
        failed = "" if self.status == 0 else f" FAILED ({self.status})"
        return f"{self.step.name}{failed}: {self.figure} in {self.seconds:.0f} s"


NO_FIGURE = r"(?!)"
PASSED = r"((?:\d+ failed, )?\d+ passed)"
AOT = r"(\d+ variants, \d+ of \d+ compiled .*?\d+ findings)"


def pytest(folder: str) -> tuple[str, ...]:
    """On both cores, test by test, because a few take a tenth of the time each; and without the
    fixtures of the other tests, which start servers.
    """
    return ("-m", "pytest", folder, "-q", "-n", "2", "--dist", "worksteal", "--confcutdir", folder)


def steps(older_triton: Path) -> list[Step]:
    return [
        Step("interpreter tests", pytest("tests/kernels_gpu"), PASSED, {"TRITON_INTERPRET": "1"}),
        Step("tests of the gate", pytest("tests/kernels_aot"), PASSED),
        Step("seeded bugs", ("-m", "tests.kernels_gpu.seeded_bugs"), r"(\d+ of \d+ caught)"),
        Step("machine code", ("-m", "kernels.aot"), AOT),
        Step(
            f"machine code by {older_triton.name}",
            ("-m", "kernels.aot", "--gated-only"),
            AOT,
            {"PYTHONPATH": str(older_triton.resolve())},
        ),
        Step("bench/gpu.py --dry", ("-m", "bench.gpu", "--dry"), r"(\d+ of \d+ sections whole)"),
        Step("roofline", ("-m", "bench.roofline"), NO_FIGURE),
    ]


def run(step: Step) -> Result:
    """Shows the step's output as it comes."""
    sys.stdout.write(f"\n== {step.name}: python {' '.join(step.arguments)}\n")
    sys.stdout.flush()
    started = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **step.environment}
    lines = []
    with subprocess.Popen(
        [sys.executable, *step.arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(CONTROL_CODES.sub("", line))
    found = re.findall(step.figure, "".join(lines))
    figure = found[-1] if found else "done" if process.returncode == 0 else "no figures"
    return Result(step, process.returncode, figure, time.monotonic() - started)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kernels_check", description=__doc__)
    parser.add_argument(
        "--older-triton", type=Path, required=True, help="a folder to import it from"
    )
    parser.add_argument("--only", action="append", help="a part of a step's name; may be repeated")
    options = parser.parse_args(arguments)
    wanted = [
        step
        for step in steps(options.older_triton)
        if not options.only or any(part in step.name for part in options.only)
    ]
    started = time.monotonic()
    results = [run(step) for step in wanted]
    passed = bool(results) and all(result.status == 0 for result in results)
    verdict = "passed" if passed else "FAILED"
    words = "; ".join(result.words() for result in results)
    sys.stdout.write(f"\nkernels {verdict} in {time.monotonic() - started:.0f} s: {words}\n")
    return not passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
