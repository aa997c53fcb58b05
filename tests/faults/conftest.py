"""What every file of kills has, and the verdicts at the end of the run.

Knows nothing of what is killed. Invariant: what is printed last is the sum of all verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.campaign import COUNTS, VERDICT, amount
from tests.faults.campaigns import stub_campaign

__all__ = ["stub_campaign"]

REPORT = Path(__file__).parents[2] / "build" / "faults.txt"


def pytest_unconfigure(config: pytest.Config) -> None:
    """The verdicts come last, wherever the tests ran; the sum of them all is the last line."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    verdicts = [] if reporter is None else list(_verdicts(reporter))
    if not verdicts:
        return
    counts = {name: sum(each[name] for each in verdicts) for name in COUNTS}
    lines = [each["summary"] for each in verdicts]
    lines.append(" / ".join(f"{name} {num}" for name, num in counts.items()))
    reporter.section("faults")
    for line in lines:
        reporter.write_line(line)
    if amount() == "soak":
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text("\n".join(lines) + "\n")


def _verdicts(reporter: pytest.TerminalReporter) -> Iterator[dict[str, Any]]:
    for reports in reporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                yield from (json.loads(str(v)) for k, v in report.user_properties if k == VERDICT)
