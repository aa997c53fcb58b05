"""The doctor beside real processes: well while they run, and it names what is taken away."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.chart.observability.installation import Installation
from tests.fixtures.processes import environment


def doctor(installation: Installation, extra: dict[str, str]) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "doctor", "--json"],
        env=environment(installation.settings, extra),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    report = json.loads(done.stdout)
    return done.returncode, {each["check"]: each for each in report["findings"]}


def test_doctor_finds_a_running_installation_well(installation: Installation) -> None:
    status, found = doctor(installation, {})
    assert status == 0, [each for each in found.values() if each["status"] == "fail"]
    assert found["engines"]["detail"] == "1 alive: engine-0"
    assert found["weights"]["status"] == found["partitions"]["status"] == "ok"
    assert found["ledger"]["status"] == "ok"


def test_control_doctor_fails_where_one_thing_is_taken_away(installation: Installation) -> None:
    for variable, check in (
        ("TENFOLD_REDIS_URL", "redis"),
        ("TENFOLD_ADAPTER_STORE", "adapter-store"),
        ("TENFOLD_MODEL", "model"),
    ):
        wrong = {"TENFOLD_REDIS_URL": "redis://127.0.0.1:1/0"}.get(variable, "/nowhere")
        status, found = doctor(installation, {variable: wrong})
        failed = {name for name, each in found.items() if each["status"] == "fail"}
        assert status == 1 and check in failed and len(failed) == 1, failed
