"""The SQL of answers that may be asked for again.

Knows nothing of HTTP, nor of what is in an answer. Invariants: a session sees one owner's answers,
by a setting of its own, so that the scope of whatever else the transaction does stays; a key is
locked until the transaction ends, by whoever comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.idempotency.tables import IdempotentAnswer

_SET_OWNER = text("SELECT set_config('app.idempotency_owner', :owner, true)")
_TRY_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))")


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    request_hash: str
    status: int
    sealed: bytes


class AnswerRepository:
    """One owner's answer to one key."""

    def __init__(self, session: AsyncSession, owner: str, key_hash: str) -> None:
        self._session = session
        self._owner = owner
        self._key_hash = key_hash

    async def try_lock(self) -> bool:
        """False where another request with this key has not ended."""
        name = f"tenfold.idempotency:{self._owner}:{self._key_hash}"
        return bool(await self._session.scalar(_TRY_LOCK, {"name": name}))

    async def find(self, now: datetime) -> StoredAnswer | None:
        await self._enter()
        row = await self._session.scalar(
            select(IdempotentAnswer).where(
                IdempotentAnswer.owner == self._owner,
                IdempotentAnswer.key_hash == self._key_hash,
                IdempotentAnswer.expires_at > now,
            )
        )
        return None if row is None else StoredAnswer(row.request_hash, row.status, row.sealed)

    async def put(self, answer: StoredAnswer, expires_at: datetime) -> None:
        """One that has expired is replaced."""
        await self._enter()
        values = {
            "request_hash": answer.request_hash,
            "status": answer.status,
            "sealed": answer.sealed,
            "expires_at": expires_at,
        }
        await self._session.execute(
            insert(IdempotentAnswer)
            .values(owner=self._owner, key_hash=self._key_hash, **values)
            .on_conflict_do_update(index_elements=["owner", "key_hash"], set_=values)
        )

    async def _enter(self) -> None:
        await self._session.execute(_SET_OWNER, {"owner": self._owner})


async def remove_expired(session: AsyncSession) -> int:
    """How many there were, of whichever owner. In a worker's role, which sees no others."""
    statement = delete(IdempotentAnswer).where(IdempotentAnswer.expires_at < func.now())
    # Core's, which asks back for no column: of most of them this role may read nothing.
    removed = await session.execute(statement.execution_options(synchronize_session=False))
    return int(getattr(removed, "rowcount", 0))
