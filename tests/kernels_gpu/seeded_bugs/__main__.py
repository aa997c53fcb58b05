"""Puts each seeded bug into a copy of the kernels and runs the tests of its area there.

A bug counts as caught when a test fails with it and the same test passes in a copy without it: a
copy that is broken for another reason catches nothing. The exit status is the verdict.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from tests.kernels_gpu.seeded_bugs import SeededBug

ROOT = Path(__file__).parents[3]
TESTS = Path("tests") / "kernels_gpu"
COPIED = ("kernels", "lora", "engine", "bench", "tests/builders", "tests/kernels_gpu")
PROCESSES = 2
# Finding a failure is enough: no time for hypothesis to make it small.
PROFILE = "first_failure"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`caught_by`: the test that noticed, as pytest names it; `problem`: why none did."""

    area: str
    bug: SeededBug
    caught_by: str | None
    problem: str | None
    seconds: float

    def line(self) -> str:
        if self.caught_by is None:
            what = f"NOT CAUGHT: {self.problem}"
        else:
            what = f"caught by {self.caught_by.partition('::')[2]}"
        return f"{self.area}: {self.bug.name}: {what} ({self.seconds:.0f} s)"


def seeded_bugs(only: Sequence[str]) -> Iterator[tuple[str, SeededBug]]:
    """(area, bug) of every file, or of those named."""
    package = Path(__file__).parent
    for file in sorted(package.glob("[!_]*.py")):
        if not only or file.stem in only:
            module = importlib.import_module(f"{__package__}.{file.stem}")
            for bug in module.BUGS:
                yield file.stem, bug


def copy_tree(root: Path) -> None:
    """What the kernels' tests need, and nothing that would make them look elsewhere."""
    # Machine code that Numba keeps beside its source is good for a copy of the source too.
    ignore = shutil.ignore_patterns("*.pyc", "results", ".pytest_cache")
    for name in COPIED:
        shutil.copytree(ROOT / name, root / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", root)


def run_tests(root: Path, tests: Sequence[str], *options: str) -> int:
    """pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "-q", "--confcutdir", str(TESTS)]
    command += ["--hypothesis-profile", PROFILE, *options, *tests]
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        # Two edits within a second would be one to the cache of compiled modules.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode


def failures(root: Path) -> list[str]:
    """The tests that the last run in this copy saw failing."""
    file = root / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return list(json.loads(file.read_text())) if file.exists() else []


def try_bug(area: str, bug: SeededBug) -> Outcome:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tenfold-bug-") as folder:
        caught_by, problem = _try_in(Path(folder), area, bug)
    return Outcome(area, bug, caught_by, problem, time.monotonic() - started)


def _try_in(root: Path, area: str, bug: SeededBug) -> tuple[str | None, str | None]:
    copy_tree(root)
    tests = sorted(str(file.relative_to(root)) for file in (root / TESTS).glob(f"test_{area}*.py"))
    if not tests:
        return None, f"there is no test_{area}*.py"
    file = root / bug.path
    try:
        file.write_text(bug.put_into(file.read_text()))
    except ValueError as error:
        return None, str(error)
    status = run_tests(root, tests, "-x")
    if status == pytest.ExitCode.OK:
        return None, "every test passes with it"
    if status != pytest.ExitCode.TESTS_FAILED:
        return None, f"pytest ended with {status}, not with a failed test"
    return failures(root)[0], None


def confirmed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The control: of the tests that noticed bugs, those that fail without any notice nothing."""
    noticed_by = sorted({each.caught_by for each in outcomes if each.caught_by is not None})
    if not noticed_by:
        return list(outcomes)
    with tempfile.TemporaryDirectory(prefix="tenfold-no-bug-") as folder:
        root = Path(folder)
        copy_tree(root)
        parallel = ("-n", str(PROCESSES)) if len(noticed_by) > PROCESSES else ()
        status = run_tests(root, noticed_by, *parallel)
        failed = failures(root) if status == pytest.ExitCode.TESTS_FAILED else noticed_by
    if status == pytest.ExitCode.OK:
        return list(outcomes)
    return [
        dataclasses.replace(each, caught_by=None, problem=f"{each.caught_by} fails without it too")
        if each.caught_by in failed
        else each
        for each in outcomes
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", help="attention, lora, ...: all by default")
    console = Console(highlight=False, soft_wrap=True)
    started = time.monotonic()
    bugs = list(seeded_bugs(parser.parse_args(arguments).areas))
    tried = []
    with ThreadPoolExecutor(PROCESSES) as pool:
        for outcome in pool.map(lambda each: try_bug(*each), bugs):
            tried.append(outcome)
            console.print(outcome.line(), markup=False)
    outcomes = confirmed(tried)
    for before, after in zip(tried, outcomes, strict=True):
        if before != after:
            console.print(after.line(), markup=False)
    caught = sum(outcome.caught_by is not None for outcome in outcomes)
    all_caught = bool(bugs) and caught == len(bugs)
    console.print(
        f"seeded bugs {'passed' if all_caught else 'FAILED'}: {caught} of {len(bugs)} caught, "
        f"{time.monotonic() - started:.0f} s",
        markup=False,
    )
    return not all_caught


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
