"""Postgres itself keeps tenants apart, whatever a query forgets to say.

Queries here are deliberately without a tenant: `SELECT * FROM adapters`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.repository import AdapterRepository
from app.db import Database, operator_scope, tenant_scope, worker_scope
from app.pages import PageQuery
from app.tables import Adapter
from tests.fixtures.servers import TestDatabase

TENANT_TABLES = (
    "tenants",
    "api_keys",
    "adapters",
    "adapter_versions",
    "adapter_aliases",
    "adapter_jobs",
    "audit_events",
    "audit_heads",
)
APPEND_ONLY = ("audit_events", "audit_heads")
SEED = (
    "INSERT INTO tenants (id, slug) VALUES ('ten_{t}', '{t}')",
    "INSERT INTO api_keys (id, tenant_id, name, key_hash, last4, scopes)"
    " VALUES ('key_{t}', 'ten_{t}', 'k', 'hash-{t}', 'abcd', '{{inference}}')",
    "INSERT INTO adapters (id, tenant_id, name, base_model_id)"
    " VALUES ('adp_{t}', 'ten_{t}', 'support-bot', 'base')",
    "INSERT INTO adapter_versions (id, tenant_id, adapter_id, number, digest, state, locator,"
    " num_bytes, files, manifest, report) VALUES ('ver_{t}', 'ten_{t}', 'adp_{t}', 1, 'sha256:1',"
    " 'active', 'ten_{t}/1', 1, '[]', '{{}}', '{{}}')",
    "INSERT INTO adapter_aliases (adapter_id, alias, tenant_id, version_id)"
    " VALUES ('adp_{t}', 'prod', 'ten_{t}', 'ver_{t}')",
    "INSERT INTO adapter_jobs (id, tenant_id, kind, subject)"
    " VALUES ('job_{t}', 'ten_{t}', 'verify', 'ver_{t}')",
    "INSERT INTO audit_events (tenant_id, seq, id, recorded_at, actor, request_id, action, target,"
    " mac) VALUES ('ten_{t}', 1, 'aud_{t}', now(), 'operator', 'req', 'x.done', 'x', '')",
    "INSERT INTO audit_heads (tenant_id, seq, mac, seal) VALUES ('ten_{t}', 1, '', '')",
)


@pytest.fixture
async def owner(database: TestDatabase) -> AsyncIterator[Database]:
    """The superuser: it sees everything, which shows that the rows are there to be leaked."""
    owner = Database(database.owner_url)
    async with owner.session() as session:
        for tenant in ("acme", "globex"):
            for statement in SEED:
                await session.execute(text(statement.format(t=tenant)))
        await session.commit()
    yield owner
    await owner.close()


@pytest.fixture
async def session(owner: Database, database: TestDatabase) -> AsyncIterator[AsyncSession]:
    """A session as the application's role."""
    app = Database(database.app_url, pool_size=1)
    async with app.session() as session:
        yield session
    await app.close()


async def count(session: AsyncSession, table: str) -> int:
    return await session.scalar(text(f"SELECT count(*) FROM {table}")) or 0


async def counts(session: AsyncSession) -> dict[str, int]:
    found = {table: await count(session, table) for table in TENANT_TABLES}
    return {table: number for table, number in found.items() if number}


async def test_without_a_scope_nothing_is_visible(session: AsyncSession) -> None:
    assert await counts(session) == {}


@pytest.mark.parametrize("table", TENANT_TABLES)
async def test_tenant_scope_shows_that_tenants_rows_only(session: AsyncSession, table: str) -> None:
    await tenant_scope(session, "ten_acme")

    owner = "id" if table == "tenants" else "tenant_id"
    rows = await session.scalars(text(f"SELECT {owner} FROM {table}"))

    assert list(rows) == ["ten_acme"]


@pytest.mark.parametrize("table", TENANT_TABLES)
async def test_control_superuser_would_leak_every_tenant(owner: Database, table: str) -> None:
    async with owner.session() as session:
        await tenant_scope(session, "ten_acme")
        assert await count(session, table) == 2


async def test_another_tenants_rows_cannot_be_changed(session: AsyncSession) -> None:
    await tenant_scope(session, "ten_acme")

    for table in sorted(set(TENANT_TABLES) - set(APPEND_ONLY)):
        owner = "id" if table == "tenants" else "tenant_id"
        update = await session.execute(
            text(f"UPDATE {table} SET {owner} = {owner} WHERE {owner} = 'ten_globex'")
        )
        delete = await session.execute(text(f"DELETE FROM {table} WHERE {owner} = 'ten_globex'"))
        assert (update.rowcount, delete.rowcount) == (0, 0)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO adapters (id, tenant_id, name, base_model_id)"
        " VALUES ('adp_x', 'ten_globex', 'x', 'base')",
        "UPDATE adapters SET tenant_id = 'ten_globex'",
        "INSERT INTO tenants (id, slug) VALUES ('ten_x', 'x')",
    ],
)
async def test_a_row_cannot_be_written_for_another_tenant(
    session: AsyncSession, statement: str
) -> None:
    await tenant_scope(session, "ten_acme")
    with pytest.raises(ProgrammingError, match="row-level security"):
        await session.execute(text(statement))


async def test_a_version_cannot_belong_to_another_tenants_adapter(session: AsyncSession) -> None:
    await tenant_scope(session, "ten_acme")
    statement = SEED[3].format(t="x").replace("'ten_x'", "'ten_acme'")
    statement = statement.replace("'adp_x', 1, 'sha256:1'", "'adp_globex', 2, 'sha256:2'")
    with pytest.raises(IntegrityError, match="foreign key"):
        await session.execute(text(statement))


async def test_an_alias_cannot_point_at_another_tenants_version(session: AsyncSession) -> None:
    await tenant_scope(session, "ten_acme")
    with pytest.raises(IntegrityError, match="foreign key"):
        await session.execute(
            text("UPDATE adapter_aliases SET version_id = 'ver_globex' WHERE alias = 'prod'")
        )


async def test_scope_ends_with_the_transaction(session: AsyncSession) -> None:
    await tenant_scope(session, "ten_acme")
    assert await count(session, "adapters") == 1

    await session.commit()

    assert await counts(session) == {}


async def test_presented_hash_leads_into_its_tenant_and_no_other(session: AsyncSession) -> None:
    enter = text("SELECT enter_tenant_of_key(:key_hash)")

    assert await session.scalar(enter, {"key_hash": "hash-acme"}) == "ten_acme"
    assert await count(session, "adapters") == 1
    assert await session.scalar(text("SELECT slug FROM tenants")) == "acme"


async def test_unknown_hash_leads_nowhere_and_out_of_where_one_was(session: AsyncSession) -> None:
    await tenant_scope(session, "ten_acme")
    for unknown in ("hash-nobody", "", "%"):
        enter = text("SELECT enter_tenant_of_key(:key_hash)")
        assert await session.scalar(enter, {"key_hash": unknown}) is None
        assert await counts(session) == {}


async def test_operator_scope_shows_tenants_and_nothing_they_own(session: AsyncSession) -> None:
    await operator_scope(session)
    assert await counts(session) == {"tenants": 2, "audit_heads": 2}


async def test_worker_scope_shows_jobs_and_nothing_they_are_about(session: AsyncSession) -> None:
    await worker_scope(session)
    assert await counts(session) == {"adapter_jobs": 2}


async def test_a_new_scope_replaces_the_old_one(session: AsyncSession) -> None:
    await operator_scope(session)
    await tenant_scope(session, "ten_acme")
    assert await count(session, "tenants") == 1


async def test_a_query_that_forgets_its_tenant_brings_back_no_foreign_row(
    session: AsyncSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repositories' own condition is sabotaged: they ask for everybody's."""
    monkeypatch.setattr(AdapterRepository, "_adapters", lambda self: select(Adapter))
    await tenant_scope(session, "ten_acme")

    rows = await AdapterRepository(session, "ten_acme").list_page(PageQuery(None, 10))

    assert [row.tenant_id for row in rows] == ["ten_acme"]


async def test_control_without_row_level_security_the_same_query_brings_back_all(
    owner: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdapterRepository, "_adapters", lambda self: select(Adapter))
    async with owner.session() as session:
        await tenant_scope(session, "ten_acme")
        assert len(await AdapterRepository(session, "ten_acme").list_page(PageQuery(None, 10))) == 2


async def test_a_session_whose_scope_was_never_set_brings_back_nothing(
    session: AsyncSession,
) -> None:
    """The scoping helper itself is sabotaged: nothing is better than something of another's."""
    assert await AdapterRepository(session, "ten_acme").list_page(PageQuery(None, 10)) == []
