"""The SQL of the ledger: written by the worker, read by operators.

Knows nothing of Redis, nor of which record wins. Invariants: whoever writes holds the ledger's lock
until the transaction ends, so that reading a row, merging into it and writing it is one step; who
vanishes amid it holds the lock for `MAX_SILENCE` and no longer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import func, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.admission.spend_repository import SpendRepository
from app.db import ledger_scope, request_scope, tenant_scope
from app.requests.ledger import Entry, EntryKey
from app.tables import AcceptedRequest, RequestEvent
from app.usage.changes_repository import RequestKey, note_changes

MAX_SILENCE = "10s"
"""Between two statements of one transaction, which are milliseconds apart."""

_LOCK = text(
    "SELECT set_config('idle_in_transaction_session_timeout', :max_silence, true),"
    " pg_advisory_xact_lock(hashtext('tenfold.ledger'))"
)
_ENSURE_PARTITIONS = text("SELECT ensure_request_partitions(:num_days)")
_KEY = ("tenant_id", "request_id", "event")
_COLUMNS = [getattr(RequestEvent, field.name) for field in fields(Entry)]
_ACCEPTED = (  # what a final event repeats of its request's acceptance
    "accepted_at",
    "key_id",
    "adapter_id",
    "adapter_version_id",
    "base_model_id",
    "service_tier",
    "is_first_choice",
)
Accepted = dict[str, Any]
_UNKNOWN: Accepted = dict.fromkeys(_ACCEPTED)


class LedgerRepository:
    """Everything happens in the transaction that `open` began."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self.spend = SpendRepository(session)

    async def open(self) -> None:
        """Take the ledger's scope and lock, for this transaction."""
        await ledger_scope(self._session)
        await self._session.execute(_LOCK, {"max_silence": MAX_SILENCE})

    async def find(self, keys: Collection[EntryKey]) -> list[Entry]:
        """The rows that are there, of these."""
        key = tuple_(RequestEvent.tenant_id, RequestEvent.request_id, RequestEvent.event)
        return await self._entries(key.in_(list(keys)))

    async def find_checkpoints(self, request_ids: Collection[str]) -> list[Entry]:
        return await self._entries(
            RequestEvent.request_id.in_(request_ids), RequestEvent.event == "checkpoint"
        )

    async def put(self, entries: Collection[Entry]) -> None:
        """Write these rows as they are, and end the requests that are over with one of them.

        What changes on a bill with them is noted in the same transaction.
        """
        finals = [entry.key[:2] for entry in entries if entry.event == "final"]
        accepted = await self._end([entry.key[:2] for entry in entries if entry.ends_request])
        rows = [asdict(entry) | _accepted_as(entry, accepted) for entry in entries]
        statement = insert(RequestEvent).values(rows)
        new = statement.excluded
        changed = {field.name: new[field.name] for field in fields(Entry) if field.name not in _KEY}
        known = {name: func.coalesce(getattr(RequestEvent, name), new[name]) for name in _ACCEPTED}
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=list(_KEY), set_={**changed, **known, "recorded_at": func.now()}
            )
        )
        if finals:
            await note_changes(self._session, finals)

    async def list_open_apis(self) -> list[str]:
        """Which API processes own requests that have not ended."""
        query = select(AcceptedRequest.api_id).where(AcceptedRequest.state == "accepted")
        return list(await self._session.scalars(query.distinct()))

    async def list_open(self, api_ids: Collection[str], limit: int) -> list[AcceptedRequest]:
        """Requests of these API processes that have not ended."""
        return list(
            await self._session.scalars(
                select(AcceptedRequest)
                .where(AcceptedRequest.state == "accepted", AcceptedRequest.api_id.in_(api_ids))
                .limit(limit)
            )
        )

    async def find_owners(self, request_ids: Collection[str]) -> dict[str, str]:
        """Of these requests, which API process owns each that has not ended."""
        query = select(AcceptedRequest.request_id, AcceptedRequest.api_id).where(
            AcceptedRequest.request_id.in_(request_ids), AcceptedRequest.state == "accepted"
        )
        rows = await self._session.execute(query)
        return {row.request_id: row.api_id for row in rows}

    async def ensure_partitions(self, num_days: int) -> int:
        """Make the partitions of today and the days after it; how many were missing."""
        return await self._session.scalar(_ENSURE_PARTITIONS, {"num_days": num_days}) or 0

    async def _end(self, requests: Collection[RequestKey]) -> dict[RequestKey, Accepted]:
        """End these requests; of those that had not ended, what they were accepted as."""
        if not requests:
            return {}
        key = (AcceptedRequest.tenant_id, AcceptedRequest.request_id)
        ended = await self._session.execute(
            update(AcceptedRequest)
            .where(AcceptedRequest.state == "accepted", tuple_(*key).in_(list(requests)))
            .values(state="ended")
            .returning(*key, *(getattr(AcceptedRequest, name) for name in _ACCEPTED))
        )
        return {(row[0], row[1]): dict(zip(_ACCEPTED, row[2:], strict=True)) for row in ended}

    async def _entries(self, *conditions: Any) -> list[Entry]:
        rows = await self._session.execute(select(*_COLUMNS).where(*conditions))
        return [Entry(*row) for row in rows]


def _accepted_as(entry: Entry, accepted: Mapping[RequestKey, Accepted]) -> Accepted:
    """A checkpoint has none; a `final` keeps what it was first written with."""
    return accepted.get(entry.key[:2], _UNKNOWN) if entry.event == "final" else _UNKNOWN


async def find_request(session: AsyncSession, request_id: str) -> AcceptedRequest | None:
    """The acceptance of the request, and the session in its tenant's scope."""
    await request_scope(session, request_id)
    found = await session.scalar(
        select(AcceptedRequest).where(AcceptedRequest.request_id == request_id).limit(1)
    )
    if found is not None:
        await tenant_scope(session, found.tenant_id)
    return found


async def list_events(
    session: AsyncSession, tenant_id: str, request_id: str
) -> Sequence[RequestEvent]:
    """The ledger's rows of one request, in the tenant's scope."""
    return list(
        await session.scalars(
            select(RequestEvent)
            .where(RequestEvent.tenant_id == tenant_id, RequestEvent.request_id == request_id)
            .order_by(RequestEvent.event)
        )
    )
