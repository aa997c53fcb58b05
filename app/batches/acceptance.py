"""Accepts lines' requests, also those that were accepted before and could not be finished.

Knows nothing of batches or queues. Invariant: one sequence, one row among the accepted requests,
with the time of its first acceptance, so that it is billed once, in the hour in which it was begun.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from app.batches.acceptance_repository import accept_again, find_accepted
from app.db import Database
from app.requests.acceptance import Acceptance
from app.requests.acceptance_repository import NewRequest


class LineAcceptance(Acceptance):
    """As `Acceptance`; `recall` says which sequences are not new, and `forget` that they ended."""

    def __init__(self, database: Database, database_url: str, *, timeout_s: float) -> None:
        super().__init__(database_url, timeout_s=timeout_s)
        self._database = database
        self._accepted_at: dict[str, datetime] = {}

    async def recall(self, tenant_id: str, request_ids: Collection[str]) -> bool:
        """Whether these were accepted before, here or by a process that is gone.

        Raises UnavailableError.
        """
        if not all(each in self._accepted_at for each in request_ids):
            async with self._database.session() as session:
                self._accepted_at |= await find_accepted(session, tenant_id, request_ids)
        return any(each in self._accepted_at for each in request_ids)

    def forget(self, hex_digits: str) -> None:
        """The sequences of the request with this id have ended for good."""
        for each in [known for known in self._accepted_at if known.startswith(hex_digits)]:
            del self._accepted_at[each]

    async def accept(self, requests: Sequence[NewRequest], *, is_hurried: bool = False) -> None:
        """Commit a row for each, all or none. Raises UnavailableError."""
        is_new = not any(each.request_id in self._accepted_at for each in requests)
        # NOTE: before it is tried: what fails may have been committed, and is not new any more.
        for each in requests:
            self._accepted_at.setdefault(each.request_id, each.accepted_at)
        if is_new:
            await super().accept(requests, is_hurried=is_hurried)
            return
        async with self._database.session() as session:
            await accept_again(
                session,
                [
                    replace(each, accepted_at=self._accepted_at[each.request_id])
                    for each in requests
                ],
            )
            await session.commit()
