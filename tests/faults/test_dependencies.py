"""What becomes of new work, of running streams and of readiness when Redis or Postgres is down.

Each test is a row of the table in docs/operations.md, and is named there; those of a Postgres that
is there are in `test_unwilling_postgres.py`, those of the adapter store in `test_store_outages.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis
from sqlalchemy import make_url

from app.launcher.ports import free_port
from app.launcher.postgres import PostgresServer
from app.launcher.valkey import ValkeyServer
from app.migrate import migrate
from app.settings import Settings
from tests.builders.relay import Relay
from tests.builders.waiting import eventually
from tests.faults.campaign import Recorder
from tests.faults.site import NO_HANG_S, Outage, Site, linked, open_site, stub_engine, tell
from tests.fixtures.servers import TestDatabase

PRODUCTION = {"dependency_timeout_s": 0.2, "failover_timeout_s": 60.0, "api_id": "api-of-the-site"}
SLOW_S = 0.15  # there, and again back


@pytest.fixture(scope="module")
def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """That nobody else uses, on a port that stays."""
    folder = tmp_path_factory.mktemp("valkey")
    port = free_port()
    with ValkeyServer(folder, password="of-the-site", durable=False, port=port) as server:
        yield server


@pytest.fixture
def server(own_valkey: ValkeyServer) -> Iterator[redis.Redis]:
    """For orders to Redis itself."""
    with redis.Redis.from_url(own_valkey.url, protocol=2) as client:
        client.flushall()
        yield client


@pytest.fixture
async def redis_link(
    own_valkey: ValkeyServer, server: redis.Redis
) -> AsyncIterator[tuple[str, Relay]]:
    async with linked(own_valkey.url, lambda: own_valkey.port) as link:
        yield link


@pytest.fixture
async def site(
    settings: Settings,
    database: TestDatabase,
    own_valkey: ValkeyServer,
    redis_link: tuple[str, Relay],
) -> AsyncIterator[Site]:
    redis_url, redis_relay = redis_link
    port = make_url(database.app_url).port
    assert port is not None
    async with linked(database.app_url, lambda: port) as (database_url, postgres_relay):
        urls = {"database_url": database_url, "redis_url": redis_url}
        production = settings.model_copy(update=PRODUCTION | urls)
        async with (
            stub_engine(redis_url),
            open_site(
                production, database.owner_url, own_valkey.url, redis_relay, postgres_relay
            ) as opened,
        ):
            yield opened


async def test_redis_is_down(site: Site, record_property: Recorder) -> None:
    link = site.redis_link
    outage = await site.through(link.cut, link.restore)
    tell(record_property, outage.summary("Redis is down"))
    assert outage.readiness_checks == (503, "ok", "unreachable")
    assert outage.models is not None and outage.models.status_code == 200


async def test_redis_is_slow(site: Site, record_property: Recorder) -> None:
    link = site.redis_link
    outage = await site.through(lambda: link.slow_down(SLOW_S), link.restore)
    tell(record_property, outage.summary("Redis is slow"))
    assert outage.models is not None and outage.models.status_code == 200


async def test_redis_is_blackholed(site: Site, record_property: Recorder) -> None:
    link = site.redis_link
    outage = await site.through(link.silence, link.restore)
    tell(record_property, outage.summary("Redis is blackholed"))
    assert outage.readiness_checks == (503, "ok", "unreachable")


async def test_control_a_process_that_waits_longer_than_it_may_is_seen(
    settings: Settings,
    database: TestDatabase,
    own_valkey: ValkeyServer,
    redis_link: tuple[str, Relay],
) -> None:
    redis_url, link = redis_link
    patience = {"redis_url": redis_url, "dependency_timeout_s": 1.2 * NO_HANG_S}
    patient = settings.model_copy(update=PRODUCTION | patience)
    async with (
        stub_engine(redis_url),
        open_site(patient, database.owner_url, own_valkey.url, link, link) as site,
    ):
        await eventually(site.is_served)
        link.silence()
        refused_s = await site.refused_s()
        link.restore()
        with pytest.raises(AssertionError, match="its own"):
            Outage().note(*refused_s)
        await eventually(site.is_served)


async def test_redis_is_read_only(
    site: Site, server: redis.Redis, record_property: Recorder
) -> None:
    """As a primary that was demoted, and does not hear of its successor."""
    outage = await site.through(
        lambda: server.replicaof("127.0.0.1", "1"), lambda: server.replicaof("NO", "ONE")
    )
    tell(record_property, outage.summary("Redis is read-only"))
    assert outage.readiness_checks == (503, "ok", "unreachable")


async def test_redis_is_out_of_memory(
    site: Site, server: redis.Redis, record_property: Recorder
) -> None:
    outage = await site.through(
        lambda: server.config_set("maxmemory", "1"), lambda: server.config_set("maxmemory", "0")
    )
    tell(record_property, outage.summary("Redis is out of memory"))
    assert outage.readiness_checks == (503, "ok", "unreachable")


async def test_redis_lost_its_data(
    site: Site, server: redis.Redis, record_property: Recorder
) -> None:
    outage = await site.through(lambda: server.flushall(), lambda: None, is_refused=False)
    tell(record_property, outage.summary("Redis lost its data"))


async def test_redis_came_back_empty(
    site: Site, own_valkey: ValkeyServer, record_property: Recorder
) -> None:
    def kill() -> None:
        assert own_valkey.child is not None
        os.kill(own_valkey.child.pid, signal.SIGKILL)

    def start() -> None:
        own_valkey.stop()
        own_valkey.start()

    # NOTE: not in a thread of this test's: a child does not outlive the thread that started it.
    outage = await site.through(kill, start)
    tell(record_property, outage.summary("Redis came back empty"))
    assert outage.readiness_checks == (503, "ok", "unreachable")


async def test_redis_hangs(site: Site, own_valkey: ValkeyServer, record_property: Recorder) -> None:
    def tell_it(number: signal.Signals) -> None:
        assert own_valkey.child is not None
        os.kill(own_valkey.child.pid, number)

    outage = await site.through(lambda: tell_it(signal.SIGSTOP), lambda: tell_it(signal.SIGCONT))
    tell(record_property, outage.summary("Redis hangs"))
    assert outage.readiness_checks == (503, "ok", "unreachable")


async def test_redis_forgot_its_scripts(
    site: Site, server: redis.Redis, record_property: Recorder
) -> None:
    """As after a restart with its data, or at a replica that took over."""
    outage = await site.through(lambda: server.script_flush(), lambda: None, is_refused=False)
    tell(record_property, outage.summary("Redis forgot its scripts"))
    assert outage.readiness_checks == (200, "ok", "ok")


async def test_postgres_is_down(site: Site, record_property: Recorder) -> None:
    link = site.postgres_link
    outage = await site.without_postgres(link.cut, link.restore)
    tell(record_property, outage.summary("Postgres is down"))
    assert outage.readiness_checks == (200, "snapshot", "ok")


async def test_postgres_is_blackholed(site: Site, record_property: Recorder) -> None:
    link = site.postgres_link
    outage = await site.without_postgres(link.silence, link.restore)
    tell(record_property, outage.summary("Postgres is blackholed"))
    assert outage.readiness_checks == (200, "snapshot", "ok")


async def test_postgres_is_slow(site: Site, record_property: Recorder) -> None:
    link = site.postgres_link
    outage = await site.without_postgres(lambda: link.slow_down(SLOW_S), link.restore)
    tell(record_property, outage.summary("Postgres is slow"))
    assert outage.readiness is not None and outage.readiness.status_code == 200


async def test_postgres_restarts(
    settings: Settings,
    own_valkey: ValkeyServer,
    redis_link: tuple[str, Relay],
    tmp_path: Path,
    record_property: Recorder,
) -> None:
    """Killed, and back on another port, as after a failover."""
    own = PostgresServer(tmp_path / "postgres", durable=True)
    await asyncio.to_thread(own.start)

    def kill() -> None:
        assert own.child is not None
        os.kill(own.child.pid, signal.SIGKILL)

    def start() -> None:
        own.stop()
        own.start()

    try:
        await asyncio.to_thread(migrate, own.admin_url)
        redis_url, redis_relay = redis_link
        async with (
            linked(own.app_url(), lambda: own.port) as (database_url, postgres_relay),
            linked(own.admin_url, lambda: own.port) as (owner_url, _),
        ):
            urls = {"database_url": database_url, "redis_url": redis_url}
            production = settings.model_copy(update=PRODUCTION | urls)
            async with (
                stub_engine(redis_url),
                open_site(
                    production, owner_url, own_valkey.url, redis_relay, postgres_relay
                ) as site,
            ):
                outage = await site.without_postgres(kill, lambda: asyncio.to_thread(start))
    finally:
        await asyncio.to_thread(own.stop)
    tell(record_property, outage.summary("Postgres restarts"))
    assert outage.readiness_checks == (200, "snapshot", "ok")


async def test_the_pool_of_connections_to_postgres_is_exhausted(
    site: Site, record_property: Recorder
) -> None:
    """What keys and models mean is known, and acceptance has a connection of its own."""
    held = AsyncExitStack()

    async def take_all() -> None:
        for _ in range(site.context.settings.database_pool_size):
            await held.enter_async_context(site.context.database.session())

    outage = await site.without_postgres(take_all, held.aclose, is_refused=False)
    tell(record_property, outage.summary("The pool is exhausted"))
    assert outage.readiness_checks == (200, "snapshot", "ok")
    assert outage.models is not None and outage.models.status_code == 503
