"""The verdict of `make billing`, as its last line: what any test of the folder has found.

A test says what it found with `record_property("billing", <JSON object>)`, or a property by the
name of one of the figures. Knows nothing of how it was found.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

BILLING = "billing"
FIGURES = ("crashes", "ledger difference", "admitted over limit", "leaks", "tamperings missed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    found.update(json.loads(str(value)) if name == BILLING else {name: value})
    if found:
        terminalreporter.section("billing")
        others = [f"{found[name]} {name}" for name in sorted(found) if name not in FIGURES]
        if others:
            terminalreporter.write_line(" / ".join(others))
        terminalreporter.write_line(
            " / ".join(f"{found.get(name, '?')} {name}" for name in FIGURES)
        )
