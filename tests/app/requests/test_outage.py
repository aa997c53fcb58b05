"""Postgres goes away under a serving API: running streams finish, new work is refused in time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.api import create_app
from app.context import AppContext, open_context
from app.db import Database
from app.launcher.postgres import PostgresServer
from app.migrate import migrate
from app.requests.acceptance import Acceptance
from app.requests.consumer import UsageConsumer
from app.settings import Settings
from tests.app.requests.conftest import Rows
from tests.app.requests.test_acceptance import accepted_soon, refused_within
from tests.app.requests.test_ledger_of_requests import PATH, body
from tests.builders.operator import Tenant
from tests.builders.relay import Relay
from tests.builders.server import serving
from tests.builders.stub_engine import StubEngine
from tests.builders.usage import new_request
from tests.builders.waiting import eventually

PROMISED_S = 0.25
BUSY_MACHINE_S = 1.0


@pytest.fixture
async def relayed(settings: Settings, relayed_url: str) -> AsyncIterator[AppContext]:
    """An API process as in production, behind the relay."""
    changes = {"database_url": relayed_url, "dependency_timeout_s": 0.2, "api_id": "api-relayed"}
    async with open_context(settings.model_copy(update=changes)) as opened:
        yield opened


@pytest.fixture
async def client(relayed: AppContext, acme: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(create_app(relayed)) as url,
        httpx.AsyncClient(base_url=url, headers=acme.headers) as client,
    ):
        yield client


async def refusals(client: httpx.AsyncClient, num: int) -> list[float]:
    """How long each refusal took."""
    seconds = []
    for _ in range(num):
        started_at = time.monotonic()
        response = await client.post(PATH, json=body())
        seconds.append(time.monotonic() - started_at)
        assert response.status_code == 503, response.text
        assert response.json()["error"]["code"] == "dependency_unavailable"
        assert int(response.headers["retry-after"]) >= 1
    return seconds


async def served(client: httpx.AsyncClient) -> bool:
    return (await client.post(PATH, json=body())).status_code == 200


@pytest.mark.parametrize("fault", ["cut", "silence"])
async def test_new_work_is_refused_in_time_running_streams_finish_and_service_returns(
    client: httpx.AsyncClient,
    relay: Relay,
    redis_url: str,
    rows: Rows,
    consumer: UsageConsumer,
    fault: str,
) -> None:
    with StubEngine(redis_url, step_s=0.01) as engine:
        await eventually(lambda: served(client))
        streaming = asyncio.create_task(client.post(PATH, json=body(300, stream=True)))
        while engine.num_running == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

        getattr(relay, fault)()
        seconds = await refusals(client, 4)
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["registry"]) == (200, "snapshot")
        streamed = await streaming

        relay.restore()
        await eventually(lambda: served(client), timeout_s=5)
    assert min(seconds) < PROMISED_S and max(seconds) < BUSY_MACHINE_S, seconds
    assert streamed.text.endswith("data: [DONE]\n\n")

    async def none_open() -> bool:
        await consumer.run_once()
        return {row["state"] for row in await rows.requests()} == {"ended"}

    await eventually(none_open)
    finals = {row["request_id"]: row for row in await rows.finals()}
    assert set(finals) == {row["request_id"] for row in await rows.requests()}
    assert 300 in {row["num_generated_tokens"] for row in finals.values()}


async def test_a_killed_postgres_that_comes_back_on_another_port_keeps_what_was_accepted(
    tmp_path: Path,
) -> None:
    server = PostgresServer(tmp_path / "postgres", durable=True)
    await asyncio.to_thread(server.start)
    try:
        await asyncio.to_thread(migrate, server.admin_url)
        async with Relay(lambda: server.port) as relay:
            url = server.app_url().replace(f":{server.port}/", f":{relay.port}/")
            await _kill_and_restart(server, Acceptance(url))
        owner = Database(server.admin_url, pool_size=1)
        found = {row["request_id"] for row in await Rows(owner).requests()}
        await owner.close()
        assert {"req_before", "req_after"} <= found
    finally:
        await asyncio.to_thread(server.stop)


async def _kill_and_restart(server: PostgresServer, acceptance: Acceptance) -> None:
    await acceptance.start()
    await acceptance.accept([new_request("req_before")])
    assert server.child is not None
    os.kill(server.child.pid, signal.SIGKILL)
    await asyncio.sleep(0.3)  # its backends end with it
    for _ in range(3):
        await refused_within(acceptance, BUSY_MACHINE_S)
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    await accepted_soon(acceptance)
    await acceptance.close()
