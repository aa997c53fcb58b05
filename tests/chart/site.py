"""API, worker and a stub engine as processes on servers that are somebody else's.

Knows nothing of those servers. Invariant: each process has ended cleanly when the block has.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.launcher.ports import LOOPBACK, free_port
from app.settings import Settings
from app.smoke.adapter import smallest_adapter
from app.smoke.check import SmokeCheck
from lora.base_spec import BaseSpec
from tests.builders.operator import ADMIN_KEY, OPERATOR
from tests.builders.waiting import wait_until
from tests.chart.rendering import CHECKOUT
from tests.fixtures.processes import START_TIMEOUT_S, STOP_TIMEOUT_S, running

PATIENCE = {"TENFOLD_DEPENDENCY_TIMEOUT_S": "5", "TENFOLD_MAX_LOOP_LAG_S": "30"}
SMOKE_TIMEOUT_S = 90.0


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
        options = {"timeout_s": SMOKE_TIMEOUT_S, "say": said.append}
        SmokeCheck(self.url, self.admin_url, ADMIN_KEY, files, **options).run()
        return said

    def admin(self) -> httpx.Client:
        return httpx.Client(base_url=f"{self.admin_url}/admin/v1", headers=OPERATOR, timeout=30)

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
) -> Iterator[Site]:
    """All of it is ready when the block begins. `variables`: of every process, besides settings.

    step_ms: of a step of the stub engine; None: the engine is somebody else's. worker_url: of the
    registry in the workers' role.
    """
    folder.mkdir(exist_ok=True)
    ports = [free_port(), free_port()]
    told = PATIENCE | dict(variables or {})
    own = {"TENFOLD_PORT": str(ports[0]), "TENFOLD_ADMIN_PORT": str(ports[1])}
    of_worker = {} if worker_url is None else {"TENFOLD_DATABASE_URL": worker_url}
    url, admin_url = (f"http://{LOOPBACK}:{port}" for port in ports)
    log, worker_log = folder / "api.log", folder / "worker.log"
    with (
        nullcontext() if step_ms is None else _engine(settings, folder, told, step_ms),
        running("app.worker", settings, worker_log, told | of_worker),
        running("app.serve", settings, log, told | own) as api,
    ):
        wait_until(lambda: api.poll() is not None or is_ready(url), timeout_s=START_TIMEOUT_S)
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
        assert process.wait(STOP_TIMEOUT_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
