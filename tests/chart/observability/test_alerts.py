"""Each alert fires where it should and is silent where all is well, and a page says what to do."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, CHECKOUT, TOOLS
from tests.chart.tooling import need

RULES = CHART / "alerts" / "tenfold.yaml"
PAGE = CHECKOUT / "docs" / "operations.md"
ROW = re.compile(r"^\| `(Tenfold\w+)` \|", re.MULTILINE)
MINUTES = 90
ROUTE = 'route="/chat/completions"'
TTFT = "tenfold_time_to_first_token_seconds_bucket"

Series = Mapping[str, str]
HEALTHY: Series = {
    'tenfold_build_info{process="api"}': "1",
    'tenfold_build_info{process="worker"}': "1",
    "tenfold_engines": "2",
    "tenfold_queued_requests": "3",
    "tenfold_queue_oldest_wait_seconds": "0.4",
    f'tenfold_http_requests_total{{{ROUTE}, status="200"}}': "0+600",
    f'tenfold_http_requests_total{{{ROUTE}, status="503"}}': "0+1",
    f'{TTFT}{{le="1"}}': "0+580",
    f'{TTFT}{{le="5"}}': "0+600",
    f'{TTFT}{{le="10"}}': "0+600",
    f'{TTFT}{{le="+Inf"}}': "0+600",
    'tenfold_requests_rejected_total{reason="overloaded"}': "0+1",
    'tenfold_requests_rejected_total{reason="dependency_unavailable"}': "0+1",
    'tenfold_dependency_up{dependency="redis"}': "1",
    "tenfold_ledger_lag_seconds": "0.2",
    "tenfold_usage_backlog_records": "40",
    'tenfold_ledger_records_refused_total{reason="unreadable"}': "0",
    'tenfold_reconcile_differences{kind="not_in_ledger"}': "0",
    'tenfold_jobs_oldest_wait_seconds{kind="verify"}': "2",
    "tenfold_exports_oldest_wait_seconds": "10",
    'tenfold_engine_stage{stage="loading", pod="e-0"}': "0",
    'tenfold_engine_stage{stage="failed", pod="e-0"}': "0",
    'tenfold_engine_requests_finished_total{finished_reason="stop"}': "0+600",
    'tenfold_engine_requests_finished_total{finished_reason="internal_error"}': "0",
    "tenfold_num_preemptions_total": "0+5",
    "tenfold_adapter_loads_total": "0+5",
    "tenfold_adapter_evictions_total": "0+5",
    "tenfold_adapter_load_failures_total": "0",
    "tenfold_fairness_spread_tokens": "4000",
    'tenfold_unpublished_steps{pod="e-0"}': "1",
}
GONE = "_"
AT_LEAST = 60
"""Minutes that a series of HEALTHY goes on for before it turns bad."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """How series turn from the hour's end on; `after` minutes later the alert fires."""

    becomes: Series
    after: int
    also: frozenset[str] = field(default_factory=frozenset)
    """Alerts that the same trouble rightly raises."""


TROUBLES: Mapping[str, Trouble] = {
    "TenfoldApiGone": Trouble({'tenfold_build_info{process="api"}': GONE}, 10),
    "TenfoldWorkerGone": Trouble({'tenfold_build_info{process="worker"}': GONE}, 13),
    "TenfoldNoEngine": Trouble({"tenfold_engines": "0"}, 4),
    "TenfoldErrors": Trouble(
        {f'tenfold_http_requests_total{{{ROUTE}, status="503"}}': "60+60"}, 12
    ),
    "TenfoldSlowFirstToken": Trouble(
        {f'{TTFT}{{le="1"}}': "34800", f'{TTFT}{{le="5"}}': "36000"}, 20
    ),
    "TenfoldQueueOld": Trouble({"tenfold_queue_oldest_wait_seconds": "45"}, 4),
    "TenfoldOverloaded": Trouble(
        {'tenfold_requests_rejected_total{reason="overloaded"}': "60+60"}, 18
    ),
    "TenfoldDependencyAway": Trouble({'tenfold_dependency_up{dependency="redis"}': "0"}, 3),
    "TenfoldAdmissionFails": Trouble(
        {'tenfold_requests_rejected_total{reason="dependency_unavailable"}': "60+60"}, 12
    ),
    "TenfoldLedgerLag": Trouble({"tenfold_ledger_lag_seconds": "70+60"}, 8),
    "TenfoldLedgerRefused": Trouble(
        {'tenfold_ledger_records_refused_total{reason="unreadable"}': "3"}, 3
    ),
    "TenfoldReconcileDrift": Trouble(
        {'tenfold_reconcile_differences{kind="not_in_ledger"}': "1"}, 18
    ),
    "TenfoldJobsLate": Trouble({'tenfold_jobs_oldest_wait_seconds{kind="verify"}': "400"}, 8),
    "TenfoldExportsLate": Trouble({"tenfold_exports_oldest_wait_seconds": "2000"}, 13),
    "TenfoldEngineStuckLoading": Trouble(
        {'tenfold_engine_stage{stage="loading", pod="e-0"}': "1"}, 32
    ),
    "TenfoldEngineFailed": Trouble({'tenfold_engine_stage{stage="failed", pod="e-0"}': "1"}, 3),
    "TenfoldEngineErrors": Trouble(
        {'tenfold_engine_requests_finished_total{finished_reason="internal_error"}': "2"}, 3
    ),
    "TenfoldPagesShort": Trouble({"tenfold_num_preemptions_total": "300+60"}, 22),
    "TenfoldColdLoads": Trouble(
        {
            "tenfold_adapter_loads_total": "300+60",
            "tenfold_adapter_evictions_total": "300+60",
        },
        28,
    ),
    "TenfoldAdapterLoadsFail": Trouble({"tenfold_adapter_load_failures_total": "1"}, 3),
    "TenfoldUnfair": Trouble({"tenfold_fairness_spread_tokens": "900000"}, 13),
    "TenfoldPublishingBehind": Trouble({'tenfold_unpublished_steps{pod="e-0"}': "40"}, 3),
}


def names_of_rules() -> set[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    need("prometheus")
    return subprocess.run(
        [TOOLS / "bin" / "promtool", *arguments], capture_output=True, text=True, check=False
    )


def values(healthy: str, then: str | None) -> str:
    """promtool's notation: an hour as it should be, and half an hour as it then is."""
    start, _, step = healthy.partition("+")
    first = f"{start}{f'+{step}' if step else '+0'}x{AT_LEAST - 1}"
    if then is None:
        return f"{first[: first.rindex('x')]}x{MINUTES + AT_LEAST}"
    if then == GONE:
        return first
    start, _, step = then.partition("+")
    return f"{first} {start}{f'+{step}' if step else '+0'}x{MINUTES}"


def scenario(becomes: Series, at: int, firing: list[str]) -> dict[str, Any]:
    unknown = becomes.keys() - HEALTHY.keys()
    assert not unknown, unknown
    return {
        "interval": "1m",
        "input_series": [
            {"series": series, "values": values(healthy, becomes.get(series))}
            for series, healthy in HEALTHY.items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{at}m",
                "exp_samples": [
                    {"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing
                ],
            }
        ],
    }


def run(tests: list[dict[str, Any]], folder: Path, rules: Path = RULES) -> str:
    """What promtool complains of; empty where all holds."""
    path = folder / "tests.yaml"
    content = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(content))
    done = promtool("test", "rules", path)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_rules_are_valid_and_each_has_its_trouble() -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert names_of_rules() == TROUBLES.keys()


@pytest.mark.parametrize("alert", TROUBLES)
def test_alert_fires_where_it_should_and_no_other_does(alert: str, tmp_path: Path) -> None:
    trouble = TROUBLES[alert]
    firing = sorted({alert, *trouble.also})
    said = run([scenario(trouble.becomes, AT_LEAST + trouble.after, firing)], tmp_path)
    assert not said, said


def test_no_alert_fires_while_all_is_well(tmp_path: Path) -> None:
    assert not run([scenario({}, minute, []) for minute in (5, 30, 75)], tmp_path)


def test_control_a_rule_that_never_fires_and_one_that_always_does_are_noticed(
    tmp_path: Path,
) -> None:
    text = RULES.read_text()
    broken = tmp_path / "broken.yaml"
    trouble = TROUBLES["TenfoldQueueOld"]
    fires = scenario(trouble.becomes, AT_LEAST + trouble.after, ["TenfoldQueueOld"])
    for wrong in ("> 30000", "> 0"):
        broken.write_text(text.replace("wait_seconds) > 30\n", f"wait_seconds) {wrong}\n"))
        assert run([fires, scenario({}, 30, [])], tmp_path, broken)


def test_every_alert_has_a_row_that_says_what_to_do_and_every_row_an_alert() -> None:
    assert set(ROW.findall(PAGE.read_text())) == names_of_rules()
