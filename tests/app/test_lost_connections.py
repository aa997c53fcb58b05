"""A connection that is lost in the turn in which it is written to is lost, and nothing worse.

uvloop, on which the API runs, raises RuntimeError for such a write, where asyncio says nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
import redis.asyncio
import structlog
from sqlalchemy import make_url, text

from app.db import CLOSED, Database
from app.errors import UnavailableError
from app.requests.acceptance_repository import LOST, AcceptanceConnection, NewRequest
from engine.transport.client import QueueClient
from engine.transport.connection import open_async_redis, translated_errors
from engine.transport.errors import QueueUnavailableError
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.relay import Relay
from tests.builders.requests import make_request
from tests.builders.waiting import until
from tests.fixtures.servers import TestDatabase

REQUEST = NewRequest(
    request_id="lost",
    tenant_id="ten_lost",
    accepted_at=datetime(2026, 1, 1, tzinfo=UTC),
    api_id="api",
    key_id="key",
    model="base",
    adapter_version_id=None,
    adapter_digest=None,
    num_prompt_tokens=1,
    max_tokens=1,
)


async def lose(client: redis.asyncio.Redis) -> Any:
    """A connection of it, lost in this turn."""
    connection: Any = await client.connection_pool.get_connection()
    await connection.send_command("PING")
    await connection.read_response()
    connection._writer.transport.abort()
    return connection


async def test_redis_is_unavailable_on_a_connection_that_was_just_lost(redis_url: str) -> None:
    async with open_async_redis(redis_url, max_connections=1) as client:
        connection = await lose(client)
        with pytest.raises(QueueUnavailableError), translated_errors():
            await connection.send_command("PING")
        await client.connection_pool.release(connection)
        assert await client.ping(), "and it is made anew"


async def test_control_the_drivers_own_connection_raises_what_nobody_expects(
    redis_url: str,
) -> None:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        connection = await lose(client)
        with pytest.raises(RuntimeError, match=CLOSED):
            await connection.send_command("PING")
        await client.connection_pool.release(connection)


async def test_postgres_is_unavailable_on_a_connection_that_was_just_lost(
    database: TestDatabase,
) -> None:
    registry = Database(database.app_url)
    with pytest.raises(UnavailableError):
        async with registry.session() as session:
            raw = await (await session.connection()).get_raw_connection()
            driver = raw.driver_connection
            assert isinstance(driver, asyncpg.Connection)
            driver._transport.abort()
            await session.execute(text("SELECT 1"))
    await registry.ping()
    await registry.close()


async def test_an_acceptance_knows_a_connection_that_was_just_lost(
    database: TestDatabase,
) -> None:
    connection = AcceptanceConnection(database.app_url)
    await connection.connect()
    driver = connection._connection
    assert driver is not None
    driver._transport.abort()
    with pytest.raises(LOST):
        await connection.insert([REQUEST])
    await connection.connect()
    await connection.insert([REQUEST])
    connection.terminate()


@pytest.fixture
async def dying_url(database: TestDatabase) -> AsyncIterator[str]:
    """Of a Postgres whose connections do not end at once when it has said that they will."""
    url = make_url(database.app_url)
    port = url.port
    assert port is not None
    async with Relay(lambda: port) as relay:
        relay.hold_ends()
        yield url.set(port=relay.port).render_as_string(hide_password=False)


async def say_goodbye(owner_url: str, pid: int) -> None:
    """Postgres tells this connection that it is terminated."""
    owner = Database(owner_url, pool_size=1)
    async with owner.session() as session:
        await session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
    await owner.close()
    await asyncio.sleep(0.2)


async def test_an_acceptance_knows_a_connection_that_is_about_to_end(
    database: TestDatabase, dying_url: str
) -> None:
    connection = AcceptanceConnection(dying_url)
    await connection.connect()
    driver = connection._connection
    assert driver is not None
    await say_goodbye(database.owner_url, driver.get_server_pid())
    assert not driver.is_closed(), "nobody knows yet"
    with pytest.raises(LOST):
        await connection.insert([REQUEST])
    await connection.connect()
    await connection.insert([REQUEST])
    connection.terminate()


async def test_postgres_is_unavailable_on_a_connection_that_is_about_to_end(
    database: TestDatabase, dying_url: str
) -> None:
    registry = Database(dying_url, pool_size=1, statement_timeout_s=1.0)
    with pytest.raises(UnavailableError):
        async with registry.session() as session:
            pid = await session.scalar(text("SELECT pg_backend_pid()"))
            await say_goodbye(database.owner_url, pid)
            await session.execute(text("SELECT 1"))
    async with registry.session() as session:
        pid = await session.scalar(text("SELECT pg_backend_pid()"))
    await say_goodbye(database.owner_url, pid)
    await registry.ping()  # one that lies in the pool is looked at, and made anew
    await registry.close()


async def test_a_mistake_of_ours_ends_what_waits_and_not_the_queue(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the task's end: nobody saw from then on that Redis had lost its data."""
    client = QueueClient(redis_url, "api-test", secret=QUEUE_SECRET)
    look = client._watch.look
    mistakes = [RuntimeError("ours")]

    async def fail_once() -> None:
        if mistakes:
            raise mistakes.pop()
        await look()

    with structlog.testing.capture_logs() as logs:
        await client.start()
        monkeypatch.setattr(client._watch, "look", fail_once)
        await until(lambda: not mistakes)
        async with open_async_redis(redis_url, max_connections=1) as server:
            await server.flushall()
        await until(lambda: any(each["event"] == "queue_lost_its_data" for each in logs))
        await client.close()
    assert [each["task"] for each in logs if each["event"] == "queue_task_failed"] == ["watch"]


@pytest.mark.parametrize(("task", "ends"), [("report", False), ("watch", True)])
async def test_a_mistake_ends_streams_only_where_none_can_go_on(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, task: str, ends: bool
) -> None:
    client = QueueClient(redis_url, "api-test", secret=QUEUE_SECRET)
    mistakes: list[Exception] = []
    owner, name = {"report": (client._reports, "send"), "watch": (client._watch, "look")}[task]
    step = getattr(owner, name)

    async def fail_once() -> None:
        if mistakes:
            raise mistakes.pop()
        await step()

    monkeypatch.setattr(owner, name, fail_once)
    await client.start()
    stream = await client.submit(make_request())
    with structlog.testing.capture_logs() as logs:
        mistakes.append(RuntimeError("ours"))
        client.disown(make_request(), "abort")  # something to report
        await until(lambda: not client._reports.num_unsent and not mistakes)
    assert [each["task"] for each in logs if each["event"] == "queue_task_failed"] == [task]
    assert stream.is_finished == ends
    await client.close()
