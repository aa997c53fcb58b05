"""What the chart's checks share. Their last line is `chart checks: passed / all`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chart.rendering import TOOLS


def pytest_configure(config: pytest.Config) -> None:
    if not (TOOLS / "bin" / "helm3").is_file():
        raise pytest.UsageError(f"{TOOLS} has no tools: run make chart")


def pytest_unconfigure(config: pytest.Config) -> None:
    """NOTE: after pytest's own summary, so that it is the last line."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    counts = Counter(
        {name: len(reporter.stats.get(name, ())) for name in ("passed", "failed", "error")}
    )
    reporter.write_line(f"chart checks: {counts['passed']} / {counts.total()}")
