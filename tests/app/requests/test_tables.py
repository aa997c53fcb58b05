"""Both tables are walled off, and a day without a partition refuses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import (
    Database,
    ledger_scope,
    operator_scope,
    request_scope,
    tenant_scope,
    worker_scope,
)
from app.requests.repository import LedgerRepository
from tests.fixtures.servers import TestDatabase

TABLES = ("requests", "request_events")
SEED = (
    "INSERT INTO requests (request_id, tenant_id, accepted_at, api_id, key_id, model,"
    " num_prompt_tokens, max_tokens) VALUES ('req_{t}', 'ten_{t}', now(), 'api', 'k', 'm', 1, 1)",
    "INSERT INTO request_events (tenant_id, request_id, event, epoch, num_prompt_tokens,"
    " num_cached_tokens, num_generated_tokens, reason_rank, reason_epoch)"
    " VALUES ('ten_{t}', 'req_{t}', 'checkpoint', 1, 1, 0, 64, 0, 1)",
)


@pytest.fixture
async def owner(database: TestDatabase) -> AsyncIterator[Database]:
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:
        for tenant in ("acme", "globex"):
            for statement in SEED:
                await session.execute(text(statement.format(t=tenant)))
        await session.commit()
    yield owner
    await owner.close()


@pytest.fixture
async def session(owner: Database, registry: Database) -> AsyncIterator[AsyncSession]:
    """A session as the application's role."""
    async with registry.session() as session:
        yield session


async def seen(session: AsyncSession) -> dict[str, list[str]]:
    return {
        table: sorted(await session.scalars(text(f"SELECT tenant_id FROM {table}")))
        for table in TABLES
    }


async def test_a_tenant_sees_its_own_rows_and_changes_none(session: AsyncSession) -> None:
    await tenant_scope(session, "ten_acme")
    assert await seen(session) == {table: ["ten_acme"] for table in TABLES}
    for table in TABLES:
        changed = await session.execute(text(f"UPDATE {table} SET num_prompt_tokens = 0"))
        assert changed.rowcount == 0


async def test_only_the_ledger_sees_all_tenants(session: AsyncSession) -> None:
    for scope in (operator_scope, worker_scope):
        await scope(session)
        assert await seen(session) == {table: [] for table in TABLES}
    await ledger_scope(session)
    assert await seen(session) == {table: ["ten_acme", "ten_globex"] for table in TABLES}


async def test_an_operator_sees_the_one_request_that_is_named(session: AsyncSession) -> None:
    await request_scope(session, "req_globex")
    assert await seen(session) == {"requests": ["ten_globex"], "request_events": []}


async def test_acceptance_adds_and_sees_nothing(session: AsyncSession) -> None:
    await session.execute(text("SELECT set_config('app.scope', 'acceptance', true)"))
    await session.execute(text(SEED[0].format(t="new")))
    assert await seen(session) == {table: [] for table in TABLES}
    with pytest.raises(ProgrammingError, match="row-level security"):
        await session.execute(text(SEED[1].format(t="new")))


async def test_without_a_scope_nothing_can_be_accepted(session: AsyncSession) -> None:
    with pytest.raises(ProgrammingError, match="row-level security"):
        await session.execute(text(SEED[0].format(t="new")))


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM request_events",
        "DELETE FROM requests",
        "SELECT * FROM request_partitions.requests_default",
    ],
)
async def test_the_ledger_is_not_deleted_nor_read_behind_its_policies(
    session: AsyncSession, statement: str
) -> None:
    await ledger_scope(session)
    with pytest.raises(ProgrammingError, match="permission denied"):
        await session.execute(text(statement))


async def partitions(owner: Database) -> dict[str, int]:
    """How many rows lie in each partition."""
    async with owner.session() as session:
        names = await session.scalars(
            text(
                "SELECT relname FROM pg_class JOIN pg_inherits ON inhrelid = oid"
                " WHERE inhparent = 'requests'::regclass"
            )
        )
        return {
            name: await session.scalar(text(f"SELECT count(*) FROM request_partitions.{name}"))
            for name in names
        }


def name_of(days_ahead: int) -> str:
    return f"requests_{datetime.now(UTC) + timedelta(days=days_ahead):%Y%m%d}"


async def test_partitions_are_made_ahead_and_used(owner: Database, registry: Database) -> None:
    async with registry.session() as session:
        ledger = LedgerRepository(session)
        assert await ledger.ensure_partitions(7) == 4  # three came with the migration
        assert await ledger.ensure_partitions(7) == 0
        await session.commit()
    found = await partitions(owner)
    assert set(found) == {name_of(day) for day in range(7)} | {"requests_default"}
    assert (found[name_of(0)], found["requests_default"]) == (2, 0)


async def test_a_day_without_a_partition_refuses_nothing_and_stays_where_it_is(
    owner: Database, registry: Database
) -> None:
    async with owner.session() as session:
        later = SEED[0].format(t="later").replace("now()", "now() + interval '5 days'")
        await session.execute(text(later))
        await session.commit()
    async with registry.session() as session:
        assert await LedgerRepository(session).ensure_partitions(7) == 3
        await session.commit()
    found = await partitions(owner)
    assert found["requests_default"] == 1 and name_of(5) not in found and name_of(6) in found
