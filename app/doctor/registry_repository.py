"""The SQL of the doctor: what Postgres is, as whom we come, and whether tenants' rows are guarded.

Knows nothing of what is good or bad. Invariant: only catalogues are read, no tenant's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

_SERVER = text("""
SELECT current_setting('server_version_num')::int AS version, current_user AS role,
    r.rolsuper OR r.rolbypassrls AS bypasses_rls, pg_is_in_recovery() AS is_replica,
    current_setting('max_connections')::int AS max_connections,
    extract(epoch FROM clock_timestamp()) AS now_s,
    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS is_tls
FROM pg_roles r WHERE r.rolname = current_user
""")
# Every table with a tenant in it, that the application's role may touch.
_UNGUARDED = text("""
SELECT c.relname FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p')
    AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
ORDER BY 1
""")
_PARTITION = text("""
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'request_partitions'
    AND c.relname = 'requests_'
        || to_char((now() + interval '1 day') AT TIME ZONE 'UTC', 'YYYYMMDD')
""")


@dataclass(frozen=True, slots=True)
class Server:
    """`version` is Postgres' number (180006); `now_s` its clock, seconds since 1970."""

    version: int
    role: str
    bypasses_rls: bool
    is_replica: bool
    max_connections: int
    now_s: float
    is_tls: bool


async def read_server(session: AsyncSession) -> Server:
    row = (await session.execute(_SERVER)).one()
    return Server(
        version=row.version,
        role=row.role,
        bypasses_rls=row.bypasses_rls,
        is_replica=row.is_replica,
        max_connections=row.max_connections,
        now_s=float(row.now_s),
        is_tls=row.is_tls,
    )


async def unguarded_tables(session: AsyncSession) -> Sequence[str]:
    """Tables with tenants' rows whose row-level security is not forced."""
    return list(await session.scalars(_UNGUARDED))


async def has_partition_of_tomorrow(session: AsyncSession) -> bool:
    return bool(await session.scalar(_PARTITION))
