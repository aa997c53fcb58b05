"""A Redis that Sentinel watches: failovers, and TLS to Sentinel as well as to the servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from app.launcher.ports import LOOPBACK
from app.settings import Settings
from engine.transport.connection import open_async_redis, open_redis, translated_errors
from engine.transport.errors import QueueUnavailableError
from tests.builders.waiting import eventually, until
from tests.chart.certificates import HOST, Authority, Certificate
from tests.chart.redis_servers import SENTINEL_PASSWORD, Sentinels, Tls, sentinels
from tests.chart.site import site
from tests.faults.campaign import Campaign, Recorder, tell
from tests.faults.clients import Clients, some_questions
from tests.faults.history import Outcome
from tests.fixtures.servers import TestDatabase

SEED = 3
REFUSED = "CERTIFICATE_VERIFY_FAILED"


async def test_a_failover_of_redis_loses_no_request(
    database: TestDatabase, settings: Settings, tmp_path: Path, record_property: Recorder
) -> None:
    """The primary is killed while eight clients stream; its replica takes over."""
    (tmp_path / "redis").mkdir()
    with sentinels(tmp_path / "redis") as group:
        own = settings.model_copy(update={"redis_url": group.url})
        worker_url = database.worker_url
        with site(own, tmp_path / "site", step_ms=40, worker_url=worker_url) as running:
            campaign = Campaign(running, database.owner_url, random.Random(SEED), {})
            asked = some_questions(12, (20, 50), random.Random(SEED))
            answers = await campaign.undisturbed(asked)

            async def fail_over(clients: Clients) -> None:
                await asyncio.sleep(1)
                before = await asyncio.to_thread(group.primary)
                await asyncio.to_thread(group.kill_primary)

                async def has_moved() -> bool:
                    return await asyncio.to_thread(group.primary) != before

                await eventually(has_moved, timeout_s=60)
                num_before = num_ok(clients)
                await until(lambda: num_ok(clients) > num_before + 16, timeout_s=60)

            verdict = await campaign.run(asked, answers, fail_over)
    tell(record_property, verdict, "a failover of Redis by Sentinel")


def num_ok(clients: Clients) -> int:
    return sum(call.outcome is Outcome.OK for call in clients.calls)


@pytest.fixture(scope="module")
def encrypted(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, certificate: Certificate
) -> Iterator[Sentinels]:
    """Servers and Sentinels that speak TLS and nothing else, to each other as well."""
    folder = tmp_path_factory.mktemp("sentinel")
    with sentinels(folder, Tls(HOST, certificate, authority)) as group:
        yield group


def test_everything_works_over_verified_tls_to_sentinel(
    encrypted: Sentinels, database: TestDatabase, settings: Settings, tmp_path: Path
) -> None:
    own = settings.model_copy(update={"redis_url": encrypted.url})
    with site(own, tmp_path / "site", worker_url=database.worker_url) as running:
        assert any("chat: ok" in line for line in running.smoke())


@pytest.mark.parametrize("wrong", ["authority", "host", "password"])
async def test_control_sentinel_of_a_stranger_is_refused(
    wrong: str, encrypted: Sentinels, authority: Authority, stranger: Authority
) -> None:
    host = LOOPBACK if wrong == "host" else HOST
    trusted = stranger if wrong == "authority" else authority
    password = "of-somebody-else" if wrong == "password" else SENTINEL_PASSWORD
    options = f"?ssl_ca_certs={trusted.path}&sentinel_password={password}"
    url, why = (
        encrypted.url_at(host) + options,
        "username-password" if wrong == "password" else REFUSED,
    )
    async with open_async_redis(url, max_connections=1) as client:
        with pytest.raises(QueueUnavailableError, match=why), translated_errors():
            await client.ping()
    blocking = open_redis(url, max_connections=1)
    with blocking, pytest.raises(QueueUnavailableError, match=why), translated_errors():
        blocking.ping()


async def test_a_primary_that_is_demoted_is_left(tmp_path: Path) -> None:
    with sentinels(tmp_path) as group:
        await check_that_the_demoted_one_is_left(group, "port")


async def test_a_primary_that_is_demoted_is_left_under_tls(encrypted: Sentinels) -> None:
    await check_that_the_demoted_one_is_left(encrypted, "tls-port")


async def check_that_the_demoted_one_is_left(group: Sentinels, port: str) -> None:
    """It lives on as a replica; who had connected to it writes to its successor."""
    before = group.primary()
    async with open_async_redis(group.url, max_connections=2) as client:
        with open_redis(group.url, max_connections=2) as blocking:

            async def is_written() -> bool:
                return bool(await write(client, blocking, port))

            await eventually(is_written, timeout_s=60)
            group.fail_over()
            await until(lambda: group.primary() != before, timeout_s=60)

            async def is_at_the_new_one() -> bool:
                written = await write(client, blocking, port)
                return bool(written) and before not in written

            await eventually(is_at_the_new_one, timeout_s=60)


async def write(client: AsyncRedis, blocking: Redis, port: str) -> list[int]:
    """To whom both of them do, by port; nothing where one of them cannot right now."""
    try:
        with translated_errors():
            await client.set("a", 1)
            blocking.set("b", 1)
            found = [await client.config_get(port), blocking.config_get(port)]
    except QueueUnavailableError:
        return []
    return [int(each[port]) for each in found]
