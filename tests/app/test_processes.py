"""The API and worker as processes: they start, serve, log no secret, and end when told to."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import asyncpg
import httpx
from sqlalchemy import make_url

from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import ADMIN_KEY, OPERATOR
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import wait_until
from tests.fixtures.processes import ApiProcess
from tests.fixtures.servers import TestDatabase


def admin_client(api_process: ApiProcess) -> httpx.Client:
    url = f"{api_process.admin_url}/admin/v1"
    return httpx.Client(base_url=url, headers=OPERATOR, timeout=60)


def upload(client: httpx.Client, base: BaseSpec, *, seed: int) -> dict[str, object]:
    """Upload a version and wait for a worker to verify it."""
    files = {name: (name, data) for name, data in adapter_files(base, seed=seed).items()}
    path = "/tenants/acme/adapters/bot/versions"
    response = client.post(path, files=files, params={"wait": 30})
    assert response.status_code == 201, response.text
    return response.json()


def test_each_port_serves_its_own_side(api_process: ApiProcess) -> None:
    ready = httpx.get(f"{api_process.url}/readyz")
    assert ready.status_code == 503  # no engine
    assert ready.json()["checks"] == {"registry": "ok", "queue": "ok", "engines": 0}
    assert httpx.get(f"{api_process.url}/admin/v1/tenants", headers=OPERATOR).status_code == 404
    assert httpx.get(f"{api_process.url}/metrics").status_code == 404
    metrics = httpx.get(f"{api_process.admin_url}/metrics")
    assert 'tenfold_http_requests_total{method="GET",route="/livez",status="200"}' in metrics.text
    assert 'route="unmatched"' in metrics.text and "/admin/v1/tenants" not in metrics.text


def test_upload_is_verified_by_the_worker_process_and_an_engine(
    api_process: ApiProcess, worker_process: Path, tiny_base: BaseSpec, settings: Settings
) -> None:
    with admin_client(api_process) as client, StubEngine(settings.redis_url):
        client.post("/tenants", json={"slug": "acme"}).raise_for_status()
        secret = client.post("/tenants/acme/keys", json={}).raise_for_status().json()["secret"]
        client.post("/tenants/acme/adapters", json={"name": "bot"}).raise_for_status()
        assert upload(client, tiny_base, seed=1)["state"] == "active"
    headers = {"x-api-key": secret}
    models = httpx.get(f"{api_process.url}/v1/models", headers=headers).json()["data"]
    assert "bot" in [model["id"] for model in models]

    logs = api_process.log_path.read_text() + worker_process.read_text()
    events = [json.loads(line) for line in logs.splitlines()]
    assert {"api_started", "http_request", "worker_started", "adapter_verified"} <= {
        event["event"] for event in events
    }
    assert secret not in logs and ADMIN_KEY not in logs and "pepper" not in logs


def test_worker_goes_on_after_its_connections_were_cut(
    api_process: ApiProcess,
    worker_process: Path,
    tiny_base: BaseSpec,
    database: TestDatabase,
    settings: Settings,
) -> None:
    with admin_client(api_process) as client, StubEngine(settings.redis_url):
        client.post("/tenants", json={"slug": "acme"}).raise_for_status()
        client.post("/tenants/acme/adapters", json={"name": "bot"}).raise_for_status()

        asyncio.run(cut_connections(database.owner_url))
        wait_until(lambda: worker_process.read_text().count("worker_listening") == 2, timeout_s=20)
        assert upload(client, tiny_base, seed=2)["state"] == "active"


async def cut_connections(owner_url: str) -> None:
    dsn = make_url(owner_url).set(drivername="postgresql")
    connection = await asyncpg.connect(dsn.render_as_string(hide_password=False))
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await connection.close()


def test_api_ends_in_order_when_told_to(api_process: ApiProcess) -> None:
    started_at = time.monotonic()
    api_process.process.terminate()
    assert api_process.process.wait(20) == 0
    assert time.monotonic() - started_at < 20
    assert "api_stopped" in api_process.log_path.read_text()
