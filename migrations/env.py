"""Alembic's entry point: runs revisions as the registry's owner, on asyncpg.

Knows nothing of single revisions. The URL is `config.attributes["url"]` (`app.migrate`) or
`TENFOLD_OWNER_DATABASE_URL`. Invariants: all pending revisions are one transaction; of several
processes that migrate at once, one does it, and the others find it done.
"""

from __future__ import annotations

import asyncio
import os

from alembic import context
from sqlalchemy import Connection, NullPool
from sqlalchemy.ext.asyncio import create_async_engine

from app.all_tables import METADATA

LOCK_TIMEOUT = "5s"
ADVISORY_LOCK = 0x7E4F01D  # any number that nobody else locks in this database
# Processes ask which revision they have found (`app.schema_repository`).
SHOW_REVISION = """
DO $$ BEGIN
    IF to_regclass('alembic_version') IS NOT NULL THEN
        GRANT SELECT ON alembic_version TO PUBLIC;
    END IF;
END $$
"""


def run_offline() -> None:
    context.configure(dialect_name="postgresql", target_metadata=METADATA, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def run_on(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=METADATA, compare_type=True)
    with context.begin_transaction():
        # Before the time-out: whoever migrates at this moment may need longer than that.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        context.run_migrations()
        connection.exec_driver_sql(SHOW_REVISION)


async def run_online() -> None:
    url = context.config.attributes.get("url") or os.environ["TENFOLD_OWNER_DATABASE_URL"]
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(run_on)
    await engine.dispose()


if context.is_offline_mode():
    run_offline()
else:
    asyncio.run(run_online())
