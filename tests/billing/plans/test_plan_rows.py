"""Postgres itself shows a tenant its own plan and its own spend, and nothing of another's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database, ledger_scope, operator_scope, tenant_scope, worker_scope
from tests.fixtures.servers import TestDatabase

SEED = (
    "INSERT INTO plans (id, name) VALUES ('pln_{t}', '{t}')",
    "INSERT INTO tenants (id, slug, plan_id) VALUES ('ten_{t}', '{t}', 'pln_{t}')",
    "INSERT INTO spend (tenant_id, subject, day, num_tokens, cost_nanos, version)"
    " VALUES ('ten_{t}', 'tenant:ten_{t}', current_date, 1, 1, 1)",
)


@pytest.fixture
async def session(database: TestDatabase) -> AsyncIterator[AsyncSession]:
    """A session as the application's role; the rows were written by the owner."""
    owner, app = Database(database.owner_url, pool_size=1), Database(database.app_url, pool_size=1)
    async with owner.session() as session:
        for tenant in ("acme", "globex"):
            for statement in SEED:
                await session.execute(text(statement.format(t=tenant)))
        await session.commit()
    async with app.session() as session:
        yield session
    await app.close()
    await owner.close()


async def seen(session: AsyncSession) -> tuple[list[str], list[str]]:
    plans = await session.scalars(text("SELECT name FROM plans ORDER BY name"))
    spend = await session.scalars(text("SELECT tenant_id FROM spend ORDER BY tenant_id"))
    return list(plans), list(spend)


async def test_each_scope_shows_what_it_is_for(session: AsyncSession) -> None:
    assert await seen(session) == ([], [])
    await tenant_scope(session, "ten_acme")
    assert await seen(session) == (["acme"], ["ten_acme"])
    await operator_scope(session)
    assert await seen(session) == (["acme", "globex"], [])
    await worker_scope(session)
    assert await seen(session) == ([], [])
    await ledger_scope(session)
    assert await seen(session) == ([], ["ten_acme", "ten_globex"])


WRITES = (
    "INSERT INTO plans (id, name) VALUES ('pln_x', 'x')",
    "INSERT INTO spend (tenant_id, subject, day, num_tokens, cost_nanos, version)"
    " VALUES ('ten_acme', 'tenant:ten_acme', '2020-01-01', 1, 1, 1)",
    "DELETE FROM spend",
)


async def test_a_tenant_writes_neither(session: AsyncSession) -> None:
    for statement in WRITES:
        await tenant_scope(session, "ten_acme")
        with pytest.raises(ProgrammingError, match=r"row-level security|permission denied"):
            await session.execute(text(statement))
        await session.rollback()
