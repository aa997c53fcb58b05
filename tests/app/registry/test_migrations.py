"""The registry's schema goes up, down and up again, and is what the code thinks it is."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from alembic import command
from alembic.util import CommandError
from sqlalchemy import make_url

from app.all_tables import METADATA
from app.migrate import alembic_config, migrate
from tests.fixtures.servers import TestDatabase


async def connect(url: str) -> asyncpg.Connection:
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return await asyncpg.connect(dsn)


async def table_names(url: str) -> set[str]:
    connection = await connect(url)
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    await connection.close()
    return {row["tablename"] for row in rows} - {"alembic_version"}


def test_schema_goes_up_down_and_up(empty_database: TestDatabase) -> None:
    config = alembic_config(empty_database.owner_url)

    command.upgrade(config, "head")
    command.downgrade(config, "base")
    command.upgrade(config, "head")

    command.check(config)


async def test_downgrade_leaves_no_table(database: TestDatabase) -> None:
    assert await table_names(database.owner_url) == set(METADATA.tables)

    config = alembic_config(database.owner_url)
    await asyncio.to_thread(command.downgrade, config, "base")

    assert await table_names(database.owner_url) == set()


async def test_check_notices_a_column_the_code_does_not_know(database: TestDatabase) -> None:
    connection = await connect(database.owner_url)
    await connection.execute("ALTER TABLE tenants ADD COLUMN surprise text")
    await connection.close()

    with pytest.raises(CommandError, match="New upgrade operations"):
        await asyncio.to_thread(command.check, alembic_config(database.owner_url))


def test_migrating_twice_changes_nothing(empty_database: TestDatabase) -> None:
    migrate(empty_database.owner_url)
    migrate(empty_database.owner_url)


async def test_every_table_forces_row_level_security(database: TestDatabase) -> None:
    connection = await connect(database.owner_url)
    rows = await connection.fetch(
        "SELECT relname, relrowsecurity, relforcerowsecurity FROM pg_class"
        " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
        " AND relname <> 'alembic_version'"
    )
    await connection.close()

    assert {row["relname"] for row in rows} == set(METADATA.tables)
    assert all(row["relrowsecurity"] and row["relforcerowsecurity"] for row in rows)


async def test_application_role_cannot_bypass_row_level_security(database: TestDatabase) -> None:
    connection = await connect(database.app_url)
    role = await connection.fetchrow(
        "SELECT current_user, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb"
        " FROM pg_roles WHERE rolname = current_user"
    )
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("ALTER TABLE tenants DISABLE ROW LEVEL SECURITY")
    await connection.close()

    assert role is not None
    assert tuple(role) == ("tenfold_app", False, False, False, False)
