"""What only workers may do, once the application's role has been left without it; and that all of
the API works on without it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.jobs import JobRunner
from app.audit.trail import worker_trail
from app.context import AppContext
from app.db import Database, ledger_scope, tenant_scope, worker_scope
from app.job_rights_repository import set_job_rights
from app.migrate import separate_roles
from app.requests.acceptance_repository import AcceptanceConnection
from app.requests.consumer import UsageConsumer
from engine.transport.connection import open_async_redis
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.canaries import PROMPT
from tests.builders.operator import Operator
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_engine import StubEngine
from tests.builders.usage import new_request
from tests.builders.waiting import eventually
from tests.fixtures.servers import TestDatabase

HOUR_S = 3600
# A row of a tenant's in each table that has something for workers to find.
WAITING = {
    "adapter_jobs": "INSERT INTO adapter_jobs (id, tenant_id, kind, subject)"
    " VALUES ('job_1', 'ten_1', 'remove', 'x')",
    "file_removals": "INSERT INTO file_removals VALUES ('x', 'ten_1', now())",
    "uploads": "INSERT INTO uploads (id, tenant_id, adapter_id, files, part_bytes, expires_at)"
    " VALUES ('upl_1', 'ten_1', 'adp_1', '[]', 1, now())",
    "usage_stale_hours": "INSERT INTO usage_stale_hours VALUES ('ten_1', now())",
    "usage_outbox": "INSERT INTO usage_outbox (tenant_id, request_id) VALUES ('ten_1', 'req_1')",
    "spend": "INSERT INTO spend VALUES ('ten_1', 'ten_1', current_date, 1, 1, 1)",
    "request_events": "INSERT INTO request_events (tenant_id, request_id, event, epoch,"
    " num_prompt_tokens, num_cached_tokens, num_generated_tokens, finish_reason, reason_rank,"
    " reason_epoch) VALUES ('ten_1', 'req_1', 'final', 0, 1, 0, 1, 'stop', 0, 0)",
    "requests": "INSERT INTO requests (request_id, tenant_id, accepted_at, api_id, key_id, model,"
    " num_prompt_tokens, max_tokens) VALUES ('req_1', 'ten_1', now(), 'api', 'key_1', 'm', 1, 1)",
    "idempotent_answers": "INSERT INTO idempotent_answers"
    " VALUES ('operator', 'h', 'h', 200, '', now() - interval '1 day')",
}
JOBS_SCOPES = {
    "adapter_jobs": worker_scope,
    "file_removals": worker_scope,
    "uploads": worker_scope,
    "usage_stale_hours": ledger_scope,
    "usage_outbox": ledger_scope,
    "spend": ledger_scope,
    "idempotent_answers": worker_scope,
}
"""In which of them a worker finds those of all tenants."""
CHANGES = [
    "UPDATE request_events SET num_generated_tokens = 0",
    "UPDATE requests SET decision = NULL",
    "UPDATE requests SET num_prompt_tokens = 0",
    "UPDATE spend SET num_tokens = 0",
    "INSERT INTO spend VALUES ('ten_1', 'key_1', current_date, 1, 1, 1)",
    "UPDATE usage_outbox SET delivered_revision = 9",
    "DELETE FROM usage_outbox",
    "DELETE FROM usage_stale_hours",
    "DELETE FROM usage_hours",
    "SELECT nextval('spend_version')",
    "SELECT ensure_request_partitions(1)",
]
"""Of the ledger and what hangs on it."""


@pytest.fixture
async def rows(database: TestDatabase) -> None:
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:
        for statement in WAITING.values():
            await session.execute(text(statement))
        await session.commit()
    await owner.close()


@pytest.fixture
async def apart(database: TestDatabase) -> None:
    """As migrations leave it where workers have a role of their own."""
    await set_job_rights(database.owner_url, workers_alone=True)


async def opened(url: str) -> AsyncIterator[AsyncSession]:
    database = Database(url, pool_size=1)
    async with database.session() as session:
        yield session
    await database.close()


@pytest.fixture
async def app_session(database: TestDatabase) -> AsyncIterator[AsyncSession]:
    async for session in opened(database.app_url):
        yield session


@pytest.fixture
async def worker_session(database: TestDatabase) -> AsyncIterator[AsyncSession]:
    async for session in opened(database.worker_url):
        yield session


async def found(session: AsyncSession, table: str) -> int:
    await JOBS_SCOPES[table](session)
    column = "expires_at" if table == "idempotent_answers" else "*"
    return int(await session.scalar(text(f"SELECT count({column}) FROM {table}")) or 0)


async def may(session: AsyncSession, statement: str) -> bool:
    """Whether nothing but policies keeps the role from it."""
    await ledger_scope(session)
    try:
        await session.execute(text(statement))
    except DBAPIError as error:
        assert "permission denied" in str(error)
        return False
    finally:
        await session.rollback()
    return True


async def test_the_application_finds_nothing_that_waits_for_workers(
    rows: None, apart: None, app_session: AsyncSession, worker_session: AsyncSession
) -> None:
    assert {table: await found(app_session, table) for table in JOBS_SCOPES} == dict.fromkeys(
        JOBS_SCOPES, 0
    )
    assert {table: await found(worker_session, table) for table in JOBS_SCOPES} == dict.fromkeys(
        JOBS_SCOPES, 1
    ), "the control"


async def test_control_before_that_it_finds_all_of_it(
    rows: None, app_session: AsyncSession
) -> None:
    assert {table: await found(app_session, table) for table in JOBS_SCOPES} == dict.fromkeys(
        JOBS_SCOPES, 1
    )


async def test_the_application_changes_nothing_of_the_ledger(
    rows: None, apart: None, app_session: AsyncSession, worker_session: AsyncSession
) -> None:
    assert [each for each in CHANGES if await may(app_session, each)] == []
    assert [each for each in CHANGES if not await may(worker_session, each)] == [], "the control"
    assert await may(app_session, "UPDATE requests SET state = 'ended'"), "it says so of its own"


async def test_control_before_that_it_may_change_it(rows: None, app_session: AsyncSession) -> None:
    assert [each for each in CHANGES if not await may(app_session, each)] == []


async def test_no_policy_for_workers_is_anybody_elses(
    apart: None, database: TestDatabase, app_session: AsyncSession
) -> None:
    query = text(
        "SELECT tablename || '.' || policyname FROM pg_policies WHERE schemaname = 'public'"
        " AND policyname IN ('worker', 'ledger') AND roles <> '{tenfold_worker}' ORDER BY 1"
    )
    assert list(await app_session.scalars(query)) == ["request_events.ledger", "requests.ledger"]
    await app_session.rollback()

    await set_job_rights(database.owner_url, workers_alone=False)
    assert len(list(await app_session.scalars(query))) > 10, "and all of it can be had back"


async def test_a_tenants_own_scope_shows_the_application_what_it_did(
    rows: None, apart: None, app_session: AsyncSession
) -> None:
    await tenant_scope(app_session, "ten_1")
    for table in ("adapter_jobs", "uploads", "file_removals", "usage_outbox", "spend"):
        assert await app_session.scalar(text(f"SELECT count(*) FROM {table}")) == 1


async def test_pods_may_migrate_at_once(database: TestDatabase) -> None:
    alone = (set_job_rights(database.owner_url, workers_alone=True) for _ in range(6))
    await asyncio.gather(*alone)


@pytest.mark.parametrize(("said", "meant"), [(None, None), ("true", True), ("false", False)])
def test_migrations_are_told_whose_it_is(said: str | None, meant: bool | None) -> None:
    assert separate_roles(said) is meant


def test_a_word_that_says_neither_is_refused() -> None:
    with pytest.raises(SystemExit, match="true or false"):
        separate_roles("maybe")


@pytest.fixture
async def worker(database: TestDatabase, apart: None) -> AsyncIterator[Database]:
    """The registry in the workers' role, which alone has what only workers need."""
    opened = Database(database.worker_url, pool_size=3)
    yield opened
    await opened.close()


@pytest.fixture
def jobs(context: AppContext, worker: Database) -> JobRunner:
    """The operator's: in that role, while API processes are in theirs."""
    peppers = context.settings.key_pepper.get_secret_value()
    return JobRunner(
        worker,
        context.store,
        context.base,
        context.now,
        validator=context.validator,
        trail_of=lambda job_id: worker_trail(peppers, job_id, context.now()),
    )


async def test_the_api_and_its_workers_do_apart_all_that_they_did(
    api: httpx.AsyncClient,
    operator: Operator,
    context: AppContext,
    worker: Database,
    tiny_base: BaseSpec,
    redis_url: str,
) -> None:
    tenant = await operator.new_tenant("acme", scopes=("inference", "usage:read"))
    await operator.new_adapter("acme", "support-bot")
    version = await operator.push("acme", "support-bot", adapter_files(tiny_base, seed=1))
    assert version["state"] == "active"
    body = {"model": "support-bot", "prompt": PROMPT, "max_tokens": 4}
    with StubEngine(redis_url):
        said = await api.post("/v1/completions", json=body, headers=tenant.headers)
    assert said.status_code == 200, said.text

    redis = open_async_redis(redis_url, max_connections=2)
    consumer = UsageConsumer(worker, redis, secret=QUEUE_SECRET)

    async def is_written() -> bool:
        await consumer.run_once()
        return consumer.num_written > 0

    await eventually(is_written)
    await redis.aclose()
    now = int(context.now().timestamp())
    query = {"start_time": now - HOUR_S, "end_time": now + HOUR_S}
    own = await api.get("/v1/usage", params=query, headers=tenant.headers)
    assert own.status_code == 200, own.text
    balance = await operator.done("GET", "/reconcile", params=query)
    assert balance["totals"]["ledger"]["output_tokens"] == 4, balance

    for path in ("/tenants/acme/adapters/support-bot?force=true", "/tenants/acme"):
        gone = await operator.call("DELETE", path)
        assert gone.is_success, gone.text
        await operator.run_jobs_after()


async def test_what_was_accepted_and_not_begun_is_ended_by_the_application(
    apart: None, database: TestDatabase, worker_session: AsyncSession
) -> None:
    """In the ledger's scope, as versions of before do it too."""
    request = new_request(f"req_{secrets.token_hex(4)}")
    connection = AcceptanceConnection(database.app_url)
    await connection.connect()
    await connection.insert([request])
    for _ in range(2):
        await connection.settle([request], "not_enqueued")
    connection.terminate()
    await ledger_scope(worker_session)
    query = text("SELECT state FROM requests WHERE request_id = :id")
    assert await worker_session.scalar(query, {"id": request.request_id}) == "ended"
