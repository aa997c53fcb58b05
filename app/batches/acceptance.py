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
    """As `Acceptance`; `recall` says which sequences are not new, and `forget` that nobody runs
    them here any more: what is known of them is then the registry's alone."""

    def __init__(self, database: Database, database_url: str, *, timeout_s: float) -> None:
        super().__init__(database_url, timeout_s=timeout_s)
        self._database = database
        self._accepted_at: dict[str, dict[str, datetime]] = {}  # by request, then by sequence

    @property
    def num_known(self) -> int:
        """Requests of which a sequence was accepted, and that were not forgotten."""
        return len(self._accepted_at)

    async def recall(self, tenant_id: str, request_ids: Collection[str]) -> bool:
        """Whether these were accepted before, here or by a process that is gone.

        Raises UnavailableError.
        """
        if not all(self._knows(each) for each in request_ids):
            async with self._database.session() as session:
                found = await find_accepted(session, tenant_id, request_ids)
            for request_id, accepted_at in found.items():
                self._remember(request_id, accepted_at)
        return any(self._knows(each) for each in request_ids)

    def forget(self, hex_digits: str) -> None:
        """The sequences of the request with this id run here no more."""
        self._accepted_at.pop(hex_digits, None)

    async def accept(self, requests: Sequence[NewRequest], *, is_hurried: bool = False) -> None:
        """Commit a row for each, all or none. Raises UnavailableError."""
        is_new = not any(self._knows(each.request_id) for each in requests)
        # NOTE: before it is tried: what fails may have been committed, and is not new any more.
        known = [
            replace(each, accepted_at=self._remember(each.request_id, each.accepted_at))
            for each in requests
        ]
        if is_new:
            await super().accept(requests, is_hurried=is_hurried)
            return
        async with self._database.session() as session:
            await accept_again(session, known)
            await session.commit()

    def _knows(self, request_id: str) -> bool:
        return request_id in self._accepted_at.get(_request_of(request_id), ())

    def _remember(self, request_id: str, accepted_at: datetime) -> datetime:
        """When it was accepted: what was known before stays."""
        return self._accepted_at.setdefault(_request_of(request_id), {}).setdefault(
            request_id, accepted_at
        )


def _request_of(sequence_id: str) -> str:
    """A request's sequences are `<hex>-<k>`."""
    return sequence_id.partition("-")[0]
