"""The corpus's verdict: how many adapters were refused as expected, served as PEFT does, or wrong.

Knows nothing of the adapters. Invariant: what is printed last counts every case that ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

COUNTS = pytest.StashKey[Counter[str]]()
KINDS = ("refused as expected", "accepted and PEFT-equal", "wrong")
Verdict = Callable[[str, bool], None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS] = Counter()


@pytest.fixture(scope="session")
def verdict(pytestconfig: pytest.Config) -> Verdict:
    """Count a case of a kind; one that is not as it should be is wrong."""

    def count(kind: str, is_right: bool) -> None:
        assert kind in KINDS
        pytestconfig.stash[COUNTS][kind if is_right else "wrong"] += 1

    return count


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = terminalreporter.config.stash[COUNTS]
    words = " / ".join(f"{counts[kind]} {kind}" for kind in KINDS)
    terminalreporter.write_line(f"corpus: {words}")
