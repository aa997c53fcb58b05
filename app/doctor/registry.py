"""Looks at Postgres: reachable, new enough, migrated, and guarded against the application itself.

Knows no SQL. Invariant: it changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from app.db import Database
from app.doctor.findings import Finding, fail, ok, warn
from app.doctor.registry_repository import (
    Server,
    has_partition_of_tomorrow,
    read_server,
    unguarded_tables,
)
from app.errors import UnavailableError
from app.schema_repository import read_schema

OLDEST, NEWEST = 15, 18
MAX_SKEW_S = 1.0
RESERVED_CONNECTIONS = 20
"""For workers, migrations, and whoever looks."""
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


async def look_at_registry(url: str | None, pool_size: int) -> list[Finding]:
    """pool_size: connections of one API process."""
    if url is None:
        return [fail("postgres", "TENFOLD_DATABASE_URL is not set", "set it")]
    try:
        host = make_url(url).host
        database = Database(url, pool_size=1, statement_timeout_s=5.0)
    except (ArgumentError, ValueError):
        what = "TENFOLD_DATABASE_URL is not a URL"
        return [fail("postgres", what, "write it as postgresql+asyncpg://role:password@host/db")]
    try:
        return await _look(database, host, pool_size)
    except (UnavailableError, SQLAlchemyError, OSError) as error:
        return [
            fail(
                "postgres",
                f"it does not answer at {host} ({_reason(error)})",
                "check host, port, role, password and TLS in TENFOLD_DATABASE_URL, and that the "
                "network lets this machine through",
            )
        ]
    finally:
        await database.close()


def _reason(error: BaseException) -> str:
    """The name of the first cause: drivers' messages may hold what is in the URL."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(getattr(error, "orig", None) or error).__name__


async def _look(database: Database, host: str | None, pool_size: int) -> list[Finding]:
    async with database.session() as session:
        began_at = time.time()
        server = await read_server(session)
        middle = (began_at + time.time()) / 2
        findings = [
            *_server_findings(server, host, pool_size),
            _clock(server.now_s - middle),
        ]
        unguarded = await unguarded_tables(session)
        has_partition = await has_partition_of_tomorrow(session)
    schema = await read_schema(database)
    findings.append(
        ok("migrations", f"the schema is at revision {schema.found}")
        if schema.is_new_enough
        else fail(
            "migrations",
            f"the schema is at revision {schema.found or 'none'}, this version needs "
            f"{schema.needed}",
            "run `tenfold migrate` with TENFOLD_OWNER_DATABASE_URL",
        )
    )
    if schema.found is not None:
        findings += [_row_security(unguarded), _partitions(has_partition)]
    return findings


def _server_findings(server: Server, host: str | None, pool_size: int) -> Iterator[Finding]:
    major = server.version // 10_000
    what = f"PostgreSQL {major}.{server.version % 10_000} at {host}"
    if major < OLDEST:
        yield fail("postgres", what, f"upgrade it: {OLDEST} to {NEWEST} are supported")
    elif major > NEWEST:
        yield warn("postgres", what, f"{OLDEST} to {NEWEST} are tested, this one is not")
    elif server.is_replica:
        yield fail("postgres", f"{what} is a read-only replica", "point the URL at the primary")
    else:
        yield ok("postgres", what)
    if server.bypasses_rls:
        yield fail(
            "role",
            f"{server.role} is a superuser or bypasses row-level security",
            "connect as a role that is neither (NOSUPERUSER NOBYPASSRLS): nothing else keeps "
            "tenants apart where our own code is wrong",
        )
    else:
        yield ok("role", f"{server.role} is bound by row-level security")
    if not server.is_tls and host not in LOCAL_HOSTS:
        yield warn(
            "postgres-tls",
            "the connection is not encrypted",
            "set PGSSLMODE=verify-full and PGSSLROOTCERT (in the chart: database.sslMode)",
        )
    room = server.max_connections - RESERVED_CONNECTIONS
    if room < pool_size:
        yield warn(
            "connections",
            f"max_connections is {server.max_connections}; one API process takes {pool_size}",
            "raise max_connections, lower TENFOLD_DATABASE_POOL_SIZE, or put PgBouncer between",
        )
    else:
        num_processes = room // pool_size
        yield ok("connections", f"enough for {num_processes} API processes of {pool_size}")


def _clock(skew_s: float) -> Finding:
    if abs(skew_s) > MAX_SKEW_S:
        return warn(
            "clock-postgres",
            f"Postgres' clock is {skew_s:+.1f} s from this machine's",
            "run NTP on both: keys expire and budgets begin by these clocks",
        )
    return ok("clock-postgres", f"{skew_s * 1000:+.0f} ms from this machine's")


def _row_security(unguarded: Sequence[str]) -> Finding:
    if unguarded:
        return fail(
            "row-level-security",
            f"not forced on {', '.join(unguarded)}",
            "run `tenfold migrate`; if it was switched off by hand: ALTER TABLE ... FORCE ROW "
            "LEVEL SECURITY",
        )
    return ok("row-level-security", "forced on every table with tenants' rows")


def _partitions(has_partition: bool) -> Finding:
    if has_partition:
        return ok("partitions", "tomorrow's is there")
    return warn(
        "partitions",
        "tomorrow's requests have no partition, and go to the default one",
        "run a worker: it makes them a week ahead",
    )
