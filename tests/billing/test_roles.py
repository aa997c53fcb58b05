"""A worker's own role: what it may not do, whatever scope is set, and whatever it forgets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.repository import AdapterRepository
from app.api_keys.repository import find_key_by_id
from app.db import Database, ledger_scope, operator_scope, tenant_scope, worker_scope
from app.pages import PageQuery
from app.tables import Adapter
from tests.builders.operator import Operator, Tenant
from tests.fixtures.servers import TestDatabase

# Where rows are tenants', and how to find whose.
OWNED = ("api_keys", "adapters", "adapter_versions", "adapter_aliases", "files", "batches")


@pytest.fixture
async def tenants(operator: Operator) -> list[Tenant]:
    made = [await operator.new_tenant(slug) for slug in ("acme", "globex")]
    for tenant in made:
        await operator.new_adapter(tenant.slug, "support-bot")
    return made


@pytest.fixture
async def session(database: TestDatabase, tenants: list[Tenant]) -> AsyncIterator[AsyncSession]:
    """A session as the workers' role."""
    worker = Database(database.worker_url, pool_size=1)
    async with worker.session() as session:
        yield session
    await worker.close()


@pytest.fixture
async def app_session(database: TestDatabase, tenants: list[Tenant]) -> AsyncIterator[AsyncSession]:
    """The control: the same as the application's role."""
    app = Database(database.app_url, pool_size=1)
    async with app.session() as session:
        yield session
    await app.close()


async def test_the_role_is_no_superuser_and_bypasses_nothing(session: AsyncSession) -> None:
    query = text(
        "SELECT current_user, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb"
        " FROM pg_roles WHERE rolname = current_user"
    )
    assert tuple((await session.execute(query)).one()) == ("tenfold_worker", *[False] * 4)


FORBIDDEN = [
    "SELECT key_hash FROM api_keys",
    "SELECT * FROM api_keys",
    "UPDATE api_keys SET scopes = '{inference}'",
    "INSERT INTO api_keys (id, tenant_id, name, key_hash, last4, scopes)"
    " SELECT 'key_x', id, 'x', 'x', 'xxxx', '{inference}' FROM tenants",
    "DELETE FROM api_keys",
    "INSERT INTO tenants (id, slug) VALUES ('ten_x', 'x')",
    "UPDATE tenants SET suspended_at = NULL",
    "DELETE FROM tenants",
    "INSERT INTO plans (id, name) VALUES ('pln_x', 'x')",
    "UPDATE plans SET limits = '{}'",
    "DELETE FROM prices",
    "SELECT sealed FROM idempotent_answers",
    "UPDATE audit_events SET actor = 'x'",
    "SELECT enter_tenant_of_key('x')",
    "CREATE TABLE x (y int)",
    "ALTER TABLE tenants DISABLE ROW LEVEL SECURITY",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
async def test_a_worker_may_not(
    session: AsyncSession, tenants: list[Tenant], statement: str
) -> None:
    await tenant_scope(session, tenants[0].id)
    with pytest.raises(DBAPIError, match=r"permission denied|must be owner"):
        await session.execute(text(statement))


@pytest.mark.parametrize(
    "statement",
    [each for each in FORBIDDEN if not each.startswith(("UPDATE audit", "CREATE", "ALTER"))],
)
async def test_control_the_application_may(
    app_session: AsyncSession, tenants: list[Tenant], statement: str
) -> None:
    await tenant_scope(app_session, tenants[0].id)
    try:
        await app_session.execute(text(statement))
    except DBAPIError as error:  # a policy or a constraint, no privilege
        assert "permission denied" not in str(error)


async def test_in_an_operators_scope_it_sees_nothing(
    session: AsyncSession, app_session: AsyncSession
) -> None:
    for table, seen in (("tenants", 2), ("audit_heads", 3)):
        count = text(f"SELECT count(*) FROM {table}")
        await operator_scope(session)
        await operator_scope(app_session)
        assert await session.scalar(count) == 0
        assert await app_session.scalar(count) == seen, "the control"


@pytest.mark.parametrize("table", OWNED)
async def test_without_a_scope_and_in_its_own_it_sees_no_tenants_objects(
    session: AsyncSession, table: str
) -> None:
    count = text(f"SELECT count(tenant_id) FROM {table}")
    assert await session.scalar(count) == 0
    await worker_scope(session)
    assert await session.scalar(count) == 0
    await ledger_scope(session)
    assert await session.scalar(count) == 0


async def test_a_query_that_forgets_its_tenant_brings_back_no_foreign_row(
    session: AsyncSession, tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdapterRepository, "_adapters", lambda self: select(Adapter))
    await tenant_scope(session, tenants[0].id)
    rows = await AdapterRepository(session, tenants[0].id).list_page(PageQuery(None, 10))
    assert [row.tenant_id for row in rows] == [tenants[0].id]


async def test_a_session_whose_scope_was_never_set_brings_back_nothing(
    session: AsyncSession, tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scoping helper itself is sabotaged."""

    async def no_scope(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr("app.api_keys.repository.tenant_scope", no_scope)
    assert await find_key_by_id(session, tenants[0].id, tenants[0].key_id) is None
    assert await AdapterRepository(session, tenants[0].id).list_page(PageQuery(None, 10)) == []


async def test_it_knows_a_key_again_without_what_it_is_known_by(
    session: AsyncSession, tenants: list[Tenant]
) -> None:
    found = await find_key_by_id(session, tenants[0].id, tenants[0].key_id)
    assert found is not None and found.tenant.slug == "acme"
    assert found.key.scopes and found.key.disabled_at is None
