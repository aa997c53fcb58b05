"""The verdict: the last line of `make simulate`, with every figure that a test recorded."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

import pytest

Record = Callable[[str], None]
RecordPart = Callable[[dict[str, float]], None]
_started_at = time.monotonic()


@pytest.fixture
def record_figure(record_property: Callable[[str, object], None]) -> Record:
    """Say it in the verdict, where the test passes."""
    return lambda figure: record_property("figure", figure)


@pytest.fixture
def record_part(record_property: Callable[[str, object], None]) -> RecordPart:
    """Figures of a part of the schedules; the verdict has them of all: sums, or what is worst."""
    return lambda figures: record_property("part", figures)


def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    passed, failed = (
        [each for kind in kinds for each in reporter.stats.get(kind, [])]
        for kinds in (["passed"], ["failed", "error"])
    )
    if not passed and not failed:
        return
    properties = [each for report in passed for each in report.user_properties]
    parts = [value for name, value in properties if name == "part"]
    figures = [value for name, value in properties if name == "figure"]
    words = [f"{len(passed)} tests passed, {len(failed)} failed", *_words(parts), *figures]
    verdict = "FAILED" if failed else "passed"
    seconds = time.monotonic() - _started_at
    sys.stdout.write(f"\nsimulate {verdict} in {seconds:.0f} s: {'; '.join(words)}\n")


def _words(parts: Iterable[dict[str, float]]) -> Iterable[str]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            before = total.get(name, 0)
            total[name] = max(before, value) if name.startswith("worst") else before + value
    if total:
        yield "schedules: " + ", ".join(
            f"{name.removeprefix('num_').replace('_', ' ')} {value:.6g}"
            for name, value in total.items()
        )
