"""A worker's work on answers that were kept: to remove those that have expired.

Knows nothing of what is in them. Invariant: a registry that is away only postpones.
"""

from __future__ import annotations

import asyncio

from app.db import Database
from app.idempotency.repository import remove_expired
from app.repeating import repeat

INTERVAL_S = 600.0


class AnswerJobs:
    """`run` until told to stop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self, stopping: asyncio.Event) -> None:
        await repeat(self.remove_expired, stopping, INTERVAL_S, postponed="answers_not_removed")

    async def remove_expired(self) -> int:
        """How many there were."""
        async with self._database.session() as session:
            num_removed = await remove_expired(session)
            await session.commit()
        return num_removed
