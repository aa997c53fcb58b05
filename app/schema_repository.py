"""Which revision the registry's schema is at, and whether that is enough for this code.

A newer one is: migrations only add, so that processes of before go on while an upgrade is under
way. Knows nothing of tables. Invariant: a schema whose revision cannot be read is an older one,
because whoever migrates lets everybody read it (`migrations/env.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from sqlalchemy import exc, text

from app.db import Database

_REVISION = text("SELECT version_num FROM alembic_version")
_REVISION_FILE = re.compile(r"(\d{4})_\w+\.py")
_UNREADABLE = ("42P01", "42501")  # there is no such table; no privilege


@dataclass(frozen=True, slots=True)
class Schema:
    """Revisions are numbers of four digits; `found` is None where none can be read."""

    found: str | None
    needed: str

    @property
    def is_new_enough(self) -> bool:
        return self.found is not None and self.found >= self.needed

    @property
    def verdict(self) -> tuple[str, dict[str, str]]:
        """A word for a readiness check, and the reason where it is no good one."""
        if self.is_new_enough:
            return "ok", {}
        reason = (
            f"The registry's schema is at revision {self.found or 'none'}, and this version needs "
            f"{self.needed}: run `tenfold migrate`."
        )
        return "outdated", {"reason": reason}


@lru_cache
def needed_revision() -> str:
    """The latest that this code has."""
    names = [each.name for each in files("migrations.versions").iterdir()]
    return max(match[1] for name in names if (match := _REVISION_FILE.fullmatch(name)))


async def read_schema(database: Database) -> Schema:
    """Raises UnavailableError where the registry does not answer."""
    async with database.session() as session:
        try:
            found = await session.scalar(_REVISION)
        except exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in _UNREADABLE:
                raise
            found = None
    return Schema(found, needed_revision())
