"""What the chart's checks share. Their last line is `checks passed / all: N / M`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chart.certificates import HOST, Authority, Certificate, new_authority
from tests.chart.patience import TEST_S
from tests.chart.rendering import TOOLS
from tests.chart.scheduling import PlaceScheduling, in_order
from tests.chart.tooling import tally
from tests.faults.campaign import VERDICT


def pytest_configure(config: pytest.Config) -> None:
    if not (TOOLS / "bin" / "helm3").is_file():
        reason = TOOLS / "helm3.cannot"
        why = reason.read_text() if reason.is_file() else "run make chart"
        raise pytest.UsageError(f"{TOOLS} has no Helm: {why}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "chart" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))
    items[:] = in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> PlaceScheduling:
    return PlaceScheduling(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    """NOTE: after pytest's own summary, so that it is the last line."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    for line in _verdicts(reporter):
        reporter.write_line(line)
    reporter.write_line(tally(reporter.stats))


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
