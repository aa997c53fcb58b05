"""What the chart's checks share. Their last line is `checks passed / all: N / M`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.chart.certificates import HOST, Authority, Certificate, new_authority
from tests.chart.patience import TEST_S
from tests.chart.rendering import TOOLS
from tests.faults.campaign import VERDICT

OUTCOMES = ("passed", "failed", "error", "skipped")


def pytest_configure(config: pytest.Config) -> None:
    if not (TOOLS / "bin" / "helm3").is_file():
        raise pytest.UsageError(f"{TOOLS} has no tools: run make chart")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "chart" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))


def pytest_unconfigure(config: pytest.Config) -> None:
    """NOTE: after pytest's own summary, so that it is the last line."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    for line in _verdicts(reporter):
        reporter.write_line(line)
    counts = Counter({name: len(reporter.stats.get(name, ())) for name in OUTCOMES})
    reporter.write_line(f"checks passed / all: {counts['passed']} / {counts.total()}")


def _verdicts(reporter: pytest.TerminalReporter) -> Iterator[str]:
    """What runs under load came to."""
    for reports in reporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if name == VERDICT:
                        yield json.loads(str(value))["summary"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.certify(HOST)
