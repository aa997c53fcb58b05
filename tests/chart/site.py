"""API, worker and a stub engine as processes on servers that are somebody else's.

Knows nothing of those servers. Invariant: each process has ended cleanly when the block has.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.launcher.ports import LOOPBACK, free_port
from app.settings import Settings
from app.smoke.adapter import smallest_adapter
from app.smoke.check import SmokeCheck
from lora.base_spec import BaseSpec
from tests.builders.operator import ADMIN_KEY, OPERATOR
from tests.builders.waiting import wait_until
from tests.chart.patience import START_S, STOP_S
from tests.chart.rendering import CHECKOUT
from tests.fixtures.processes import running

PATIENCE = {"TENFOLD_DEPENDENCY_TIMEOUT_S": "5", "TENFOLD_MAX_LOOP_LAG_S": "30"}
DAY_S = 86400


@dataclass(frozen=True, slots=True)
class Site:
    url: str
    admin_url: str
    model: Path
    log: Path
    """The API's."""

    def urls(self) -> list[str]:
        return [self.url]

    def smoke(self) -> list[str]:
        """What `helm test` does; what it said. Raises SmokeError."""
        said: list[str] = []
        files = smallest_adapter(BaseSpec.from_folder(self.model))
        options = {"timeout_s": START_S, "say": said.append}
        SmokeCheck(self.url, self.admin_url, ADMIN_KEY, files, **options).run()
        return said

    def admin(self) -> httpx.Client:
        url = f"{self.admin_url}/admin/v1"
        return httpx.Client(base_url=url, headers=OPERATOR, timeout=START_S)

    def reconciled(self) -> dict[str, Any]:
        """Acceptances, ledger and roll-ups of today, when nothing is under way any more."""
        query = {"start_time": int(time.time()) - DAY_S}
        found: dict[str, Any] = {}

        def is_settled() -> bool:
            found.update(client.get("/reconcile", params=query).raise_for_status().json())
            return found["pending"]["open_requests"] == 0 and bool(found["is_balanced"])

        with self.admin() as client:
            wait_until(is_settled, timeout_s=START_S)
        return found

    def new_key(self, tenant: str = "acme") -> Mapping[str, str]:
        """A new tenant's, as the headers of its calls."""
        with self.admin() as admin:
            admin.post("/tenants", json={"slug": tenant}).raise_for_status()
            key = admin.post(f"/tenants/{tenant}/keys", json={}).raise_for_status().json()
        return {"x-api-key": key["secret"]}


@contextmanager
def site(
    settings: Settings,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    *,
    step_ms: int | None = 5,
    worker_url: str | None = None,
    of_engine: Mapping[str, str] | None = None,
) -> Iterator[Site]:
    """All of it is ready when the block begins. `variables`: of every process, besides settings.

    step_ms: of a step of the stub engine; None: the engine is somebody else's. worker_url: of the
    registry in the workers' role. of_engine: variables of the stub engine alone.
    """
    folder.mkdir(exist_ok=True)
    ports = [free_port(), free_port()]
    told = PATIENCE | dict(variables or {})
    own = {"TENFOLD_PORT": str(ports[0]), "TENFOLD_ADMIN_PORT": str(ports[1])}
    of_worker = {} if worker_url is None else {"TENFOLD_DATABASE_URL": worker_url}
    url, admin_url = (f"http://{LOOPBACK}:{port}" for port in ports)
    log, worker_log = folder / "api.log", folder / "worker.log"
    with (
        nullcontext()
        if step_ms is None
        else _engine(settings, folder, told | dict(of_engine or {}), step_ms),
        running("app.worker", settings, worker_log, told | of_worker),
        running("app.serve", settings, log, told | own) as api,
    ):
        wait_until(lambda: api.poll() is not None or is_ready(url), timeout_s=START_S)
        assert api.poll() is None, log.read_text()
        yield Site(url, admin_url, settings.model, log)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).is_success
    except httpx.TransportError:
        return False


@contextmanager
def _engine(
    settings: Settings, folder: Path, variables: Mapping[str, str], step_ms: int
) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.stub_engine", "--redis-url", settings.redis_url]
    options = ["--model", str(settings.model), "--step-ms", str(step_ms)]
    secret, log = settings.queue_secret.get_secret_value(), folder / "engine.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options],
            cwd=CHECKOUT,
            env={**os.environ, **variables, "TENFOLD_QUEUE_SECRET": secret},
            stdout=output,
            stderr=output,
        )
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
