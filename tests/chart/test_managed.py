"""Managed services: Postgres and Redis over verified TLS, PgBouncer. Real servers, all.

What Tenfold is told is what the chart tells it: `PGSSLMODE`, `PGSSLROOTCERT`, and URLs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest
from sqlalchemy import make_url, text

from app.database_url import CACHE_SIZE, connect
from app.db import Database
from app.errors import UnavailableError
from app.launcher.errors import LauncherError
from app.launcher.ports import LOOPBACK
from app.launcher.postgres import PostgresServer
from app.migrate import migrate
from app.requests.acceptance_repository import AcceptanceConnection
from app.settings import Settings
from engine.transport.connection import open_async_redis, open_redis, translated_errors
from engine.transport.errors import QueueUnavailableError
from tests.builders.tiny_base import MODEL_ID
from tests.builders.usage import new_request
from tests.builders.waiting import wait_until
from tests.chart.certificates import HOST, Authority, Certificate
from tests.chart.redis_servers import PASSWORD, Tls, tls_redis
from tests.chart.servers import pgbouncer
from tests.chart.site import site
from tests.chart.tooling import need
from tests.fixtures.servers import TestDatabase

NUM_AT_ONCE = 40
NAMELESS = f"?{CACHE_SIZE}=0"
REFUSED = "CERTIFICATE_VERIFY_FAILED"


def at_host(url: str, host: str) -> str:
    return make_url(url).set(host=host).render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def tls_postgres(
    tmp_path_factory: pytest.TempPathFactory, certificate: Certificate
) -> Iterator[PostgresServer]:
    """Debian's, which takes TLS and nothing else."""
    need("postgresql")
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))[-1].parent
    folder = tmp_path_factory.mktemp("postgres-tls")
    with PostgresServer(folder, durable=False, bin_dir=binaries) as server:
        demand_tls(server, certificate)
        yield server


def demand_tls(server: PostgresServer, certificate: Certificate) -> None:
    home = server.home
    for source, name in ((certificate.path, "server.crt"), (certificate.key, "server.key")):
        target = home.cluster / name
        shutil.copy(source, target)
        target.chmod(0o600)
        if home.uid >= 0:
            os.chown(target, home.uid, home.gid)
    server.run_sql("ALTER SYSTEM SET ssl = on")
    (home.cluster / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
    server.run_sql("SELECT pg_reload_conf()")
    wait_until(lambda: is_open(server), timeout_s=20)


def is_open(server: PostgresServer) -> bool:
    try:
        return server.run_sql("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == "t"
    except LauncherError:
        return False


@pytest.fixture
def verified(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the chart tells processes where `database.sslMode` is verify-full; this one as well."""
    variables = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": str(authority.path)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def test_everything_works_over_verified_tls(
    tls_postgres: PostgresServer,
    certificate: Certificate,
    authority: Authority,
    verified: dict[str, str],
    settings: Settings,
    tmp_path: Path,
) -> None:
    migrate(at_host(tls_postgres.admin_url, HOST))
    with tls_redis(tmp_path, Tls(HOST, certificate, authority)) as port:
        own = settings.model_copy(
            update={
                "database_url": at_host(tls_postgres.app_url(), HOST),
                "redis_url": redis_url(HOST, port, authority),
            }
        )
        worker_url = at_host(tls_postgres.worker_url(), HOST)
        with site(own, tmp_path / "site", verified, worker_url=worker_url) as running:
            assert any("chat: ok" in line for line in running.smoke())
            encrypted = tls_postgres.run_sql(
                "SELECT bool_and(ssl), count(*) > 3 FROM pg_stat_ssl JOIN pg_stat_activity"
                " USING (pid) WHERE usename LIKE 'tenfold_%'"
            )
    assert encrypted == "t|t"


def redis_url(host: str, port: int, trusted: Authority) -> str:
    return f"rediss://:{PASSWORD}@{host}:{port}/0?ssl_ca_certs={trusted.path}"


@pytest.mark.parametrize("wrong", ["authority", "host"])
async def test_control_postgres_of_a_stranger_is_refused(
    wrong: str,
    tls_postgres: PostgresServer,
    stranger: Authority,
    verified: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who shows a certificate of another authority, or of another host, gets no word."""
    host = LOOPBACK if wrong == "host" else HOST
    if wrong == "authority":
        monkeypatch.setenv("PGSSLROOTCERT", str(stranger.path))
    database = Database(at_host(tls_postgres.app_url(), host), pool_size=1)
    with pytest.raises(UnavailableError) as refused:
        await database.ping()
    await database.close()
    assert refused.value.internal == "registry: SSLCertVerificationError"


@pytest.mark.parametrize("wrong", ["authority", "host"])
async def test_control_redis_of_a_stranger_is_refused(
    wrong: str, certificate: Certificate, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    host = LOOPBACK if wrong == "host" else HOST
    trusted = stranger if wrong == "authority" else authority
    with tls_redis(tmp_path, Tls(HOST, certificate, authority)) as port:
        async with open_async_redis(redis_url(HOST, port, authority), max_connections=1) as good:
            assert await good.ping()
        url = redis_url(host, port, trusted)
        async with open_async_redis(url, max_connections=1) as client:
            with pytest.raises(QueueUnavailableError, match=REFUSED), translated_errors():
                await client.ping()
        blocking = open_redis(url, max_connections=1)
        with pytest.raises(QueueUnavailableError, match=REFUSED), translated_errors():
            blocking.ping()
        blocking.close()


@pytest.fixture
def pooler_port(database: TestDatabase) -> Iterator[int]:
    """Of a PgBouncer that has two connections to the registry for all who come in one role."""
    urls = [make_url(each) for each in (database.app_url, database.worker_url)]
    folder = Path(tempfile.mkdtemp(prefix="tenfold-pgbouncer-"))
    folder.chmod(0o755)
    passwords = {str(url.username): str(url.password) for url in urls}
    port = urls[0].port
    assert port is not None
    try:
        with pgbouncer(LOOPBACK, port, passwords, folder, pool_size=2) as own_port:
            yield own_port
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def pooled_url(database: TestDatabase, pooler_port: int) -> str:
    return at_port(database.app_url, pooler_port)


def at_port(url: str, port: int) -> str:
    return make_url(url).set(port=port).render_as_string(hide_password=False)


async def test_everything_works_behind_a_pooler_in_transaction_mode(
    pooled_url: str,
    pooler_port: int,
    database: TestDatabase,
    settings: Settings,
    tmp_path: Path,
) -> None:
    own = settings.model_copy(update={"database_url": pooled_url + NAMELESS})
    worker_url = at_port(database.worker_url, pooler_port) + NAMELESS
    with site(own, tmp_path / "site", worker_url=worker_url) as running:
        await asyncio.to_thread(running.smoke)
        headers = await asyncio.to_thread(running.new_key)
        body = {"model": MODEL_ID, "prompt": "abcdefgh", "max_tokens": 4}
        async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60) as client:
            answers = await asyncio.gather(
                *(client.post("/v1/completions", json=body) for _ in range(NUM_AT_ONCE))
            )
    assert {answer.status_code for answer in answers} == {200}, [a.text for a in answers][:2]


async def test_no_scope_stays_on_a_connection_that_others_get(pooled_url: str) -> None:
    url = pooled_url + NAMELESS
    acceptance = AcceptanceConnection(url)
    await acceptance.connect()
    await acceptance.insert([new_request("req_a")])
    await acceptance.settle([new_request("req_b")], "not_enqueued")
    acceptance.terminate()
    database = Database(url, pool_size=4)
    query = text("SELECT coalesce(current_setting('app.scope', true), '')")
    async with database.session() as one, database.session() as other:
        scopes = [await session.scalar(query) for session in (one, other)]
    await database.close()
    assert scopes == ["", ""]


async def test_nameless_statements_follow_no_connection(pooled_url: str) -> None:
    async with on_another_connection(pooled_url + NAMELESS) as ask:
        assert await ask() == 1


async def test_control_named_statements_are_lost_on_the_way(pooled_url: str) -> None:
    """Debian's PgBouncer is 1.18, which keeps none for its clients."""
    async with on_another_connection(pooled_url) as ask:
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await ask()


@asynccontextmanager
async def on_another_connection(url: str) -> AsyncIterator[object]:
    """A call of a statement that was called before, when another client has that connection."""
    first, second = await connect(url, timeout_s=5), await connect(url, timeout_s=5)

    async def ask() -> int:
        return await first.fetchval("SELECT $1::integer", 1)

    try:
        assert await ask() == 1
        async with second.transaction():
            await second.fetchval("SELECT 1")
            yield ask
    finally:
        first.terminate()
        second.terminate()
