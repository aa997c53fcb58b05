"""A whole Tenfold of real processes on a tiny model, watched by Prometheus and a trace collector.

Knows nothing of what is asserted. Invariant: everything has ended when the block is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.launcher.ports import LOOPBACK, free_port
from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.canaries import PROMPT
from tests.builders.operator import OPERATOR
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import wait_until
from tests.chart.observability.collector import Collector
from tests.chart.observability.prometheus import Prometheus
from tests.chart.patience import START_S, STOP_S
from tests.chart.site import PATIENCE
from tests.fixtures.processes import environment, running

MAX_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Installation:
    settings: Settings
    url: str
    admin_url: str
    logs: Mapping[str, Path]
    """By process."""
    prometheus: Prometheus
    collector: Collector
    keys: Mapping[str, str]
    """By tenant."""

    def chat(
        self, tenant: str, model: str = MODEL_ID, headers: Mapping[str, str] = {}, **fields: Any
    ) -> httpx.Response:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": MAX_TOKENS,
            "seed": 1,
        }
        return httpx.post(
            f"{self.url}/v1/chat/completions",
            json=body | fields,
            headers={"authorization": f"Bearer {self.keys[tenant]}", **headers},
            timeout=60,
            trust_env=False,
        )

    def leave_early(self, tenant: str) -> None:
        """Hang up at the first token."""
        body = {
            "model": MODEL_ID,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": 400,
            "stream": True,
        }
        with httpx.stream(
            "POST",
            f"{self.url}/v1/chat/completions",
            json=body,
            headers={"authorization": f"Bearer {self.keys[tenant]}"},
            timeout=60,
            trust_env=False,
        ) as response:
            assert response.status_code == 200
            next(response.iter_bytes())

    def log_text(self) -> str:
        return "".join(path.read_text() for path in self.logs.values())


@contextmanager
def installed(settings: Settings, folder: Path) -> Iterator[Installation]:
    """API, worker and engine, with two tenants, an adapter, and one that may ask for nothing."""
    ports = {name: free_port() for name in ("api", "admin", "worker", "engine")}
    logs = {name: folder / f"{name}.log" for name in ("api", "worker", "engine")}
    with Collector() as collector:
        traced = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        api = {"TENFOLD_PORT": str(ports["api"]), "TENFOLD_ADMIN_PORT": str(ports["admin"])}
        worker = {"TENFOLD_HEALTH_PORT": str(ports["worker"])}
        with (
            running("app.serve", settings, logs["api"], api | PATIENCE | traced),
            running("app.worker", settings, logs["worker"], worker),
            _engine(settings, logs["engine"], ports["engine"], traced),
            Prometheus(
                folder / "prometheus",
                {"api": ports["admin"], "worker": ports["worker"], "engine": ports["engine"]},
            ) as prometheus,
        ):
            url, admin_url = (f"http://{LOOPBACK}:{ports[name]}" for name in ("api", "admin"))
            wait_until(lambda: _is_ready(url), timeout_s=START_S)
            keys = _tenants(admin_url, settings)
            yield Installation(settings, url, admin_url, logs, prometheus, collector, keys)


@contextmanager
def _engine(
    settings: Settings, log_path: Path, port: int, extra: Mapping[str, str]
) -> Iterator[None]:
    command = [sys.executable, "-m", "engine", "--threads", "1", "--pool-bytes", str(1 << 24)]
    told = {"TENFOLD_HEALTH_PORT": str(port), "TENFOLD_ENGINE_ID": "engine-0"}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--adapter-store", settings.adapter_store],
            env=environment(settings, {**told, **extra}) | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )
    try:
        yield
        process.terminate()
        assert process.wait(STOP_S) == 0, log_path.read_text()
    finally:
        process.kill()
        process.wait()


def _tenants(admin_url: str, settings: Settings) -> dict[str, str]:
    """Tenants and their keys; `acme` has the adapter `bot`, `limited` no request a minute."""
    keys = {}
    with httpx.Client(
        base_url=f"{admin_url}/admin/v1", headers=OPERATOR, timeout=60, trust_env=False
    ) as admin:
        for slug, limits in (("acme", {}), ("globex", {}), ("limited", {"requests_per_minute": 0})):
            admin.post("/tenants", json={"slug": slug, "limits": limits}).raise_for_status()
            made = admin.post(f"/tenants/{slug}/keys", json={}).raise_for_status().json()
            keys[slug] = made["secret"]
        admin.post("/tenants/acme/adapters", json={"name": "bot"}).raise_for_status()
        base = BaseSpec.from_folder(settings.model)
        files = {name: (name, data) for name, data in adapter_files(base, seed=1).items()}
        path = "/tenants/acme/adapters/bot/versions"
        pushed = admin.post(path, files=files, params={"wait": 60}).raise_for_status().json()
        assert pushed["state"] == "active", pushed
    return keys


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False
