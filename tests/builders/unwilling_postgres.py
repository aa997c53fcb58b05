"""Has Postgres say no, to what is written or to whoever connects, or answer nobody about a table.

Knows nothing of who asks. Invariant: whose role owns the database is never refused.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from sqlalchemy import text

from app.db import Database

WRITTEN = ("requests", "request_events")
"""By acceptance and by the ledger."""


class UnwillingPostgres:
    """`owner`: the registry as a superuser."""

    def __init__(self, owner: Database) -> None:
        self._owner = owner
        self._name = owner.engine.url.database
        self._locking = AsyncExitStack()

    async def refuse(self, state: str) -> None:
        """Whatever writes a request or what it used fails with this SQLSTATE."""
        refusal = (
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$"
        )
        triggers = [
            f"CREATE OR REPLACE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
            for table in WRITTEN
        ]
        await self._run(refusal, *triggers)

    async def refuse_no_more(self) -> None:
        await self._run("DROP FUNCTION IF EXISTS refuse() CASCADE")

    async def become_read_only(self) -> None:
        """As a primary that was demoted: what is connected by then stays so when it is over."""
        await self._run(f"ALTER DATABASE {self._name} SET default_transaction_read_only = on")
        await self._hang_up()

    async def become_writable(self) -> None:
        await self._run(f"ALTER DATABASE {self._name} RESET default_transaction_read_only")

    async def take_no_connections(self) -> None:
        """It has as many as it may have, and hangs up on those that there are."""
        await self._run(f"ALTER DATABASE {self._name} CONNECTION LIMIT 0")
        await self._hang_up()

    async def take_connections(self) -> None:
        await self._run(f"ALTER DATABASE {self._name} CONNECTION LIMIT -1")

    async def time_out_after(self, seconds: float) -> None:
        """A statement may take that long, and no longer."""
        limit_ms = int(1000 * seconds)
        await self._run(f"ALTER DATABASE {self._name} SET statement_timeout = {limit_ms}")
        await self._hang_up()

    async def time_out_never(self) -> None:
        await self._run(f"ALTER DATABASE {self._name} RESET statement_timeout")
        await self._hang_up()

    async def lock(self, *tables: str) -> None:
        """Nobody reads or writes them, until `unlock`. Takes a connection of the owner's."""
        session = await self._locking.enter_async_context(self._owner.session())
        await session.execute(text(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE"))

    async def unlock(self) -> None:
        await self._locking.aclose()

    async def _hang_up(self) -> None:
        await self._run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND usename <> current_user"
        )

    async def _run(self, *statements: str) -> None:
        async with self._owner.session() as session:
            await session.execute(text("SET TRANSACTION READ WRITE"))
            for statement in statements:
                await session.execute(text(statement))
            await session.commit()
