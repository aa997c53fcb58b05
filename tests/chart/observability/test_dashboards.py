"""Every query of every dashboard gives data on a real Prometheus that scraped a real Tenfold."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import tools.dashboards
from tests.builders.tiny_base import MODEL_ID
from tests.chart.observability.installation import Installation
from tests.chart.observability.prometheus import SCRAPE_INTERVAL_S
from tests.chart.patience import START_S
from tests.chart.rendering import CHART, of_kind, render

DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
ALERTS = sorted((CHART / "alerts").glob("*.yaml"))
NAMES = {"fleet", "tenant", "adapter", "engine"}
METRIC = re.compile(r"\b(?:tenfold|process)_[a-z0-9_]+")
VARIABLES = {
    "$namespace": "tenfold",
    "$tenant": ".*",
    "$engine": ".*",
    "$__rate_interval": "1m",
}


def queries(dashboard: Path) -> Iterator[tuple[str, str]]:
    """(panel, PromQL) with variables as Grafana would fill them in."""
    for panel in json.loads(dashboard.read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            yield panel["title"], expression


@pytest.fixture(scope="module")
def busy(installation: Installation) -> Installation:
    """After traffic of every kind, and enough scrapes for a rate."""
    for _ in range(2):
        for tenant, model in (("acme", MODEL_ID), ("acme", "bot"), ("globex", MODEL_ID)):
            assert installation.chat(tenant, model).status_code == 200
        assert installation.chat("acme", "bot", n=2).status_code == 200
        assert installation.chat("limited").status_code == 429
        assert installation.chat("acme", "nothing").status_code == 404
        installation.leave_early("globex")
        time.sleep(2 * SCRAPE_INTERVAL_S)
    time.sleep(3 * SCRAPE_INTERVAL_S)
    return installation


def test_dashboards_are_those_that_were_made() -> None:
    assert {path.stem for path in DASHBOARDS} == NAMES
    for path, text in tools.dashboards.made_files(CHART).items():
        assert path.read_text() == text, f"run python -m tools.dashboards {CHART}"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_gives_data(busy: Installation, dashboard: Path) -> None:
    """In the end: on a busy machine a scrape may be missed, and what it brings comes later."""
    missing = list(queries(dashboard))
    assert "$" not in "".join(query for _, query in missing)
    give_up_at = time.monotonic() + START_S
    while missing and time.monotonic() < give_up_at:
        missing = [each for each in missing if not busy.prometheus.query(each[1])]
        time.sleep(SCRAPE_INTERVAL_S / 4)
    assert missing == []


def test_control_a_query_for_what_nobody_exports_gives_none(busy: Installation) -> None:
    assert busy.prometheus.query('tenfold_pages{namespace="elsewhere"}') == []
    assert busy.prometheus.query("rate(tenfold_no_such_thing_total[1m])") == []


def test_alerts_ask_only_for_what_is_exported(busy: Installation) -> None:
    exported = busy.prometheus.metadata()
    for path in ALERTS:
        asked = set(METRIC.findall(" ".join(expressions(path))))
        assert asked and asked <= exported, asked - exported


def expressions(rules: Path) -> list[str]:
    groups: list[dict[str, Any]] = yaml.safe_load(rules.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def test_no_alert_fires_on_a_healthy_installation(busy: Installation) -> None:
    for path in ALERTS:
        for expression in expressions(path):
            assert busy.prometheus.query(expression) == [], expression


def test_numbers_are_those_of_the_traffic(busy: Installation) -> None:
    """What clients were told they used is what is counted."""
    before = total(busy, "tenfold_generation_tokens_total")
    usage = busy.chat("acme", "bot").json()["usage"]
    time.sleep(3 * SCRAPE_INTERVAL_S)
    assert total(busy, "tenfold_generation_tokens_total") - before == usage["completion_tokens"]


def total(installation: Installation, metric: str) -> float:
    (series,) = installation.prometheus.query(f"sum({metric})")
    return float(series["value"][1])


def test_tenants_are_named_by_id_and_nothing_else_of_theirs_is_a_label(
    busy: Installation,
) -> None:
    tenants = {
        series["metric"]["tenant"]
        for series in busy.prometheus.query("tenfold_requests_received_total")
    }
    assert len(tenants) == 3 and all(tenant.startswith("ten_") for tenant in tenants)
    exported = json.dumps(busy.prometheus.query('{__name__=~"tenfold_.*"}'))
    for text in ("canary", "bot", "acme", *busy.keys.values()):
        assert text not in exported


def test_rules_and_dashboards_are_objects_where_they_are_wanted() -> None:
    wanted = {"metrics": {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}}
    objects = render("prod", values=wanted)
    maps = [each for each in of_kind(objects, "ConfigMap") if "dashboard" in str(each["metadata"])]
    assert {name for each in maps for name in each["data"]} == {f"{name}.json" for name in NAMES}
    for each in maps:
        (text,) = each["data"].values()
        assert json.loads(text)["uid"].startswith("tenfold-")
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
    (rule,) = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(ALERTS[0].read_text())
    unwanted = {"metrics": {"prometheusRule": {"enabled": False}, "dashboards": {"enabled": False}}}
    assert not of_kind(render("prod", values=unwanted), "PrometheusRule")
