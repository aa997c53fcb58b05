"""The smoke test that `helm test` runs, against real processes; and that it can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from app.settings import Settings
from tests.builders.operator import ADMIN_KEY, OPERATOR
from tests.builders.stub_engine import StubEngine
from tests.fixtures.processes import ApiProcess

TIMEOUT_S = 100


def smoke(api: ApiProcess, settings: Settings, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.cli", "smoke", "--url", api.url, "--admin-url"]
    environment = os.environ | {
        "TENFOLD_ADMIN_KEY": ADMIN_KEY,
        "TENFOLD_MODEL": str(settings.model),
    }
    return subprocess.run(
        [*command, api.admin_url, *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_smoke_passes_and_leaves_nothing(
    api_process: ApiProcess, worker_process: Path, settings: Settings
) -> None:
    with StubEngine(settings.redis_url):
        done = smoke(api_process, settings, "--timeout=60")
    assert done.returncode == 0, done.stderr
    for step in ("ready", "tenant", "key", "adapter", "chat", "usage", "removed"):
        assert f"{step}: ok" in done.stderr
    tenants = httpx.get(f"{api_process.admin_url}/admin/v1/tenants", headers=OPERATOR).json()
    assert [each for each in tenants["data"] if each.get("state") != "deleted"] == []


@pytest.mark.parametrize("missing", ["engine", "worker"])
def test_control_smoke_fails_where_something_is_missing(
    api_process: ApiProcess, settings: Settings, missing: str
) -> None:
    if missing == "engine":
        done = smoke(api_process, settings, "--timeout=3")
        assert done.returncode == 1 and "ready:" in done.stderr
        return
    with StubEngine(settings.redis_url):
        done = smoke(api_process, settings, "--timeout=5")
    assert done.returncode == 1 and "adapter:" in done.stderr
