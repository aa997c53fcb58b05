"""One URL for both ways into the registry: SQLAlchemy's, and plain asyncpg.

    postgresql+asyncpg://tenfold_app:...@host:6432/tenfold?prepared_statement_cache_size=0

The option (SQLAlchemy's own) is for a pooler that may give each transaction another connection and
does not keep prepared statements for its clients: PgBouncer in transaction mode before 1.21. Then
statements have no name and are parsed each time, by whichever server they come to. Knows nothing of
tables. Invariant: whatever connects to the registry as the application connects through here.
"""

from __future__ import annotations

from typing import Any

import asyncpg
from sqlalchemy import URL, make_url

CACHE_SIZE = "prepared_statement_cache_size"


def connect_args(url: str) -> dict[str, Any]:
    """What SQLAlchemy's asyncpg dialect needs to be told besides the URL."""
    if _keeps_statements(make_url(url)):
        return {}
    return {"statement_cache_size": 0, "prepared_statement_name_func": _no_name}


async def connect(url: str, *, timeout_s: float) -> asyncpg.Connection:
    """A connection of asyncpg's own. Raises what asyncpg raises."""
    parsed = make_url(url)
    options = {} if _keeps_statements(parsed) else {"statement_cache_size": 0}
    dsn = parsed.set(drivername="postgresql").difference_update_query([CACHE_SIZE])
    return await asyncpg.connect(
        dsn.render_as_string(hide_password=False), timeout=timeout_s, **options
    )


def _keeps_statements(url: URL) -> bool:
    return url.query.get(CACHE_SIZE) != "0"


def _no_name() -> str:
    return ""
