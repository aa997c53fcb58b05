"""The SQL of what waits to be exported.

Knows nothing of HTTP. Invariants: an event is claimed for a time, never by a lock that is held
while somebody else answers; what was delivered is kept as it was sent, for `reconcile`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import ledger_scope

_CLAIM = text("""
UPDATE usage_outbox
SET attempts = attempts + 1, not_before = now() + make_interval(secs => :claim_s)
WHERE (tenant_id, request_id) IN (
    SELECT tenant_id, request_id FROM usage_outbox
    WHERE revision > delivered_revision AND not_before <= now()
    ORDER BY not_before LIMIT :limit
    FOR UPDATE SKIP LOCKED)
RETURNING tenant_id, request_id, revision, attempts
""")
_READ = text("""
SELECT tenant_id, request_id, accepted_at, recorded_at, key_id, adapter_id, adapter_version_id,
    adapter_digest, base_model_id, service_tier, finish_reason, engine_id, input_tokens,
    cached_tokens, output_tokens, reasoning_tokens, queue_ms, adapter_load_ms
FROM usage_ledger
WHERE (tenant_id, request_id) IN (
    SELECT * FROM unnest(CAST(:tenant_ids AS text[]), CAST(:request_ids AS text[])))
""")
# Rows are locked in the order in which the ledger's writer locks them.
_DELIVERED = text("""
WITH locked AS (
    SELECT o.tenant_id, o.request_id, sent.revision, sent.data
    FROM usage_outbox o JOIN unnest(CAST(:tenant_ids AS text[]), CAST(:request_ids AS text[]),
        CAST(:revisions AS integer[]), CAST(:data AS jsonb[]))
        AS sent (tenant_id, request_id, revision, data) USING (tenant_id, request_id)
    WHERE o.delivered_revision < sent.revision
    ORDER BY o.tenant_id, o.request_id FOR UPDATE OF o
)
UPDATE usage_outbox o SET delivered_revision = locked.revision, delivered = locked.data
FROM locked WHERE o.tenant_id = locked.tenant_id AND o.request_id = locked.request_id
""")
_POSTPONE = text("""
WITH locked AS (
    SELECT o.tenant_id, o.request_id, late.wait_s
    FROM usage_outbox o JOIN unnest(CAST(:tenant_ids AS text[]), CAST(:request_ids AS text[]),
        CAST(:revisions AS integer[]), CAST(:waits_s AS float[]))
        AS late (tenant_id, request_id, revision, wait_s) USING (tenant_id, request_id)
    WHERE o.revision = late.revision
    ORDER BY o.tenant_id, o.request_id FOR UPDATE OF o
)
UPDATE usage_outbox o SET not_before = now() + make_interval(secs => locked.wait_s)
FROM locked WHERE o.tenant_id = locked.tenant_id AND o.request_id = locked.request_id
""")


@dataclass(frozen=True, slots=True)
class Claimed:
    """One event to deliver: `row` is the ledger's, at `revision` or later."""

    tenant_id: str
    request_id: str
    revision: int
    attempts: int
    row: dict[str, Any]

    @property
    def recorded_at(self) -> datetime:
        recorded_at = self.row["recorded_at"]
        assert isinstance(recorded_at, datetime)
        return recorded_at


class OutboxRepository:
    """Each method sets the ledger's scope, for one transaction of its own."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def claim(self, limit: int, claim_s: float) -> list[Claimed]:
        """What is due, for `claim_s`: whoever does not answer by then has it delivered again."""
        await ledger_scope(self._session)
        rows = await self._session.execute(_CLAIM, {"limit": limit, "claim_s": claim_s})
        due = {(row.tenant_id, row.request_id): row for row in rows}
        if not due:
            return []
        tenant_ids, request_ids = map(list, zip(*due, strict=True))
        # NOTE: read after the claim: what changes later has a later revision.
        found = await self._session.execute(
            _READ, {"tenant_ids": tenant_ids, "request_ids": request_ids}
        )
        return [
            _claimed(due[row["tenant_id"], row["request_id"]], dict(row))
            for row in found.mappings()
        ]

    async def delivered(self, sent: Sequence[tuple[Claimed, dict[str, Any]]]) -> None:
        """These were taken by the receiver, with these data."""
        await ledger_scope(self._session)
        keys = _keys([claimed for claimed, _ in sent])
        await self._session.execute(
            _DELIVERED, {**keys, "data": [json.dumps(data) for _, data in sent]}
        )

    async def postpone(self, late: Sequence[tuple[Claimed, float]]) -> None:
        """These were not taken: try again in so many seconds, or at once where it changed since."""
        await ledger_scope(self._session)
        keys = _keys([claimed for claimed, _ in late])
        await self._session.execute(_POSTPONE, {**keys, "waits_s": [wait_s for _, wait_s in late]})


def _claimed(due: Row[Any], row: dict[str, Any]) -> Claimed:
    return Claimed(due.tenant_id, due.request_id, due.revision, due.attempts, row)


def _keys(events: Sequence[Claimed]) -> dict[str, list[Any]]:
    return {
        "tenant_ids": [claimed.tenant_id for claimed in events],
        "request_ids": [claimed.request_id for claimed in events],
        "revisions": [claimed.revision for claimed in events],
    }
