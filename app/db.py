"""The registry's connection: sessions, and the scope that row-level security reads.

Knows nothing of tables. Invariant: a session without a scope sees no tenant's rows. A scope is a
setting of one transaction, so that a pooled connection never carries it to the next request; after
a commit it has to be set again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import structlog
from sqlalchemy import exc, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from app.database_url import connect_args
from app.errors import UnavailableError

log = structlog.get_logger()

CONNECT_TIMEOUT_S = 2.0
POOL_TIMEOUT_S = 5.0

CLOSED = "the handler is closed"
"""uvloop says so in a RuntimeError: the connection was lost in the turn in which it is written to,
and neither driver looks for that."""
LOST = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""What asyncpg raises where Postgres went away; the last where Postgres has said that it will, and
the connection has not ended yet."""
_CONNECT_FAILURES = (*LOST, RuntimeError, exc.DBAPIError, exc.TimeoutError)
# SQLSTATEs and classes of them: connection exception, read-only, idle for too long, rolled back for
# the sake of others, insufficient resources, a lock that is not to be had, cancelled (as by a
# time-out), shutdown or start-up, input and output. None says anything against the statement.
_READ_ONLY = "25006"
_LOST_STATES = ("08", _READ_ONLY, "25P03", "40", "53", "55P03", "57014", "57P", "58")
_REFUSED_STATES = ("22", "23")  # a value, a constraint
_SCOPE = text(
    "SELECT set_config('app.tenant_id', :tenant_id, true),"
    " set_config('app.scope', :scope, true),"
    " set_config('app.request_id', :request_id, true)"
)

_LOCK_NAME = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
_TRY_LOCK_NAME = text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))")


class Database:
    """A pool of connections to Postgres as the application's role."""

    def __init__(
        self, url: str, *, pool_size: int = 5, statement_timeout_s: float | None = None
    ) -> None:
        """statement_timeout_s: from when on a Postgres that says nothing counts as away."""
        options: dict[str, Any] = {"timeout": CONNECT_TIMEOUT_S} | connect_args(url)
        if statement_timeout_s is not None:
            options["command_timeout"] = statement_timeout_s
        self.engine = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_S,
            pool_pre_ping=True,
            connect_args=options,
        )
        self._sessions = async_sessionmaker(self.engine, expire_on_commit=False)

    async def close(self) -> None:
        await self.engine.dispose()

    async def ping(self) -> None:
        """Ask Postgres anything. Raises UnavailableError."""
        async with self.session() as session:
            await session.execute(text("SELECT 1"))

    async def warm_up(self, num_connections: int) -> None:
        """Connect ahead, so that the first requests need not wait for it."""
        sessions = [self._sessions() for _ in range(num_connections)]
        connecting = [session.connection() for session in sessions]
        results = await asyncio.gather(*connecting, return_exceptions=True)
        await asyncio.gather(*(session.close() for session in sessions))
        failed = [result for result in results if isinstance(result, Exception)]
        if failed:
            log.warning("registry_unreachable", error=type(failed[0]).__name__)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        """A session on an open connection; what is not committed is rolled back.

        Raises UnavailableError when Postgres cannot be reached, goes away meanwhile, or takes
        nothing now, whatever it is: read-only, full, too late for a time-out.
        """
        session = self._sessions()
        try:
            try:
                await session.connection()
            except _CONNECT_FAILURES as error:
                raise registry_unavailable(error) from error
            try:
                yield session
            except TimeoutError as error:  # the driver's own, of a statement
                raise registry_unavailable(error) from error
            except exc.DBAPIError as error:
                if _state(error) == _READ_ONLY:  # maybe a demoted primary: its successor is sought
                    await asyncio.shield(session.invalidate())
                if _is_lost(error):
                    raise registry_unavailable(_cause(error)) from error
                raise
            except RuntimeError as error:
                if CLOSED in str(error):
                    raise registry_unavailable(error) from error
                raise
        finally:
            # Shielded: a request that is cancelled must still give its connection back.
            await asyncio.shield(_close(session))


async def _close(session: AsyncSession) -> None:
    try:
        await session.close()
    except (
        exc.DBAPIError,
        RuntimeError,
        *LOST,
    ):  # no roll-back: the connection is of no use to anybody
        await session.invalidate()


def is_refused(error: exc.DBAPIError) -> bool:
    """Whether what was to be written is at fault, so that it would never be taken."""
    return _state(error).startswith(_REFUSED_STATES)


def _is_lost(error: exc.DBAPIError) -> bool:
    """Whether Postgres went away, or takes nothing now, rather than refused a statement."""
    return (
        error.connection_invalidated
        or isinstance(error, exc.OperationalError | exc.InterfaceError)
        or _state(error).startswith(_LOST_STATES)
    )


def _state(error: exc.DBAPIError) -> str:
    """Its SQLSTATE; '' where Postgres has not spoken."""
    return getattr(error.orig, "sqlstate", None) or ""


def _cause(error: exc.DBAPIError) -> BaseException:
    """What the driver raised."""
    return (error.orig and error.orig.__cause__) or error


async def tenant_scope(session: AsyncSession, tenant_id: str) -> None:
    """From here to the end of the transaction: this tenant's rows and no others."""
    await _set_scope(session, tenant_id=tenant_id)


async def operator_scope(session: AsyncSession) -> None:
    """All tenants as such, to list or find them; none of what they own."""
    await _set_scope(session, scope="operator")


async def worker_scope(session: AsyncSession) -> None:
    """The jobs that wait for a worker, of whichever tenant; none of what they are about."""
    await _set_scope(session, scope="worker")


async def request_scope(session: AsyncSession, request_id: str) -> None:
    """The acceptance of the one request that an operator names, of whichever tenant."""
    await _set_scope(session, request_id=request_id)


async def ledger_scope(session: AsyncSession) -> None:
    """What requests were accepted and what they used, of all tenants, to write it down."""
    await _set_scope(session, scope="ledger")


async def billing_scope(session: AsyncSession) -> None:
    """What all tenants used and what it costs, to be read."""
    await _set_scope(session, scope="billing")


async def lock_name(session: AsyncSession, name: str) -> None:
    """Until the transaction ends, nobody else has the lock of this name, in this database."""
    await session.execute(_LOCK_NAME, {"name": name})


async def try_lock_name(session: AsyncSession, name: str) -> bool:
    """The same, without waiting: False where somebody has it."""
    return bool(await session.scalar(_TRY_LOCK_NAME, {"name": name}))


async def _set_scope(
    session: AsyncSession,
    *,
    tenant_id: str = "",
    scope: str = "",
    request_id: str = "",
) -> None:
    values = {
        "tenant_id": tenant_id,
        "scope": scope,
        "request_id": request_id,
    }
    await session.execute(_SCOPE, values)


def registry_unavailable(error: BaseException) -> UnavailableError:
    return UnavailableError(internal=f"registry: {type(error).__name__}")
