"""The SQL by which a change of the ledger reaches roll-ups and exports.

Knows nothing of either. Invariants: a `final` event and the note of it are one transaction; whoever
notes a change of an hour locks that hour's note till the transaction ends, so that a roll-up either
sees the change or leaves the note (`rollups_repository.py`).
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import ledger_scope

RequestKey = tuple[str, str]
"""(tenant_id, request_id)"""

_NOTE_HOURS = text("""
INSERT INTO usage_stale_hours (tenant_id, hour)
SELECT DISTINCT tenant_id, hour FROM usage_ledger
WHERE (tenant_id, request_id) IN (
    SELECT * FROM unnest(CAST(:tenant_ids AS text[]), CAST(:request_ids AS text[])))
ORDER BY tenant_id, hour
ON CONFLICT (tenant_id, hour) DO UPDATE SET hour = excluded.hour
""")
_NOTE_REQUESTS = text("""
INSERT INTO usage_outbox (tenant_id, request_id)
SELECT tenant_id, request_id FROM usage_ledger
WHERE (tenant_id, request_id) IN (
    SELECT * FROM unnest(CAST(:tenant_ids AS text[]), CAST(:request_ids AS text[])))
ORDER BY tenant_id, request_id
ON CONFLICT (tenant_id, request_id) DO UPDATE
SET revision = usage_outbox.revision + 1, attempts = 0, not_before = now()
""")
_HAS_UNDATED = text(
    "SELECT EXISTS (SELECT FROM request_events WHERE event = 'final' AND accepted_at IS NULL)"
)
_DATE = text("""
WITH undated AS (
    SELECT tenant_id, request_id FROM request_events
    WHERE event = 'final' AND accepted_at IS NULL
    ORDER BY recorded_at LIMIT :limit
)
UPDATE request_events e
SET accepted_at = coalesce(r.accepted_at, e.recorded_at), key_id = r.key_id,
    adapter_id = r.adapter_id, adapter_version_id = r.adapter_version_id,
    base_model_id = r.base_model_id, service_tier = r.service_tier,
    is_first_choice = r.is_first_choice
FROM undated LEFT JOIN requests r USING (tenant_id, request_id)
WHERE e.tenant_id = undated.tenant_id AND e.request_id = undated.request_id AND e.event = 'final'
RETURNING e.tenant_id, e.request_id
""")


async def note_changes(session: AsyncSession, requests: Collection[RequestKey]) -> None:
    """The `final` events of these requests have changed. In the ledger's scope."""
    tenant_ids, request_ids = map(list, zip(*requests, strict=True))
    keys = {"tenant_ids": tenant_ids, "request_ids": request_ids}
    await session.execute(_NOTE_HOURS, keys)
    await session.execute(_NOTE_REQUESTS, keys)


async def has_undated_events(session: AsyncSession) -> bool:
    """Whether there is something for `date_events`. Sets the ledger's scope."""
    await ledger_scope(session)
    return bool(await session.scalar(_HAS_UNDATED))


async def date_events(session: AsyncSession, limit: int) -> int:
    """Complete `final` events that were written without their requests' acceptance; how many.

    Those are of requests whose acceptance was settled, and what an older worker wrote. Under the
    ledger's lock (`LedgerRepository.open`).
    """
    dated = [(row[0], row[1]) for row in await session.execute(_DATE, {"limit": limit})]
    if dated:
        await note_changes(session, dated)
    return len(dated)
