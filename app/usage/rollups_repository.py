"""The SQL that rolls the ledger up by the hour.

Knows nothing of when that is due. Invariant: an hour's note is taken away, and what its ledger then
says is written, in one transaction; a writer who is not seen by it leaves a new note
(`changes_repository.py`). So an hour without a note says what its ledger says.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import ledger_scope

_TAKE = text("""
DELETE FROM usage_stale_hours
WHERE (tenant_id, hour) IN (
    SELECT tenant_id, hour FROM usage_stale_hours WHERE hour < :before
    ORDER BY hour, tenant_id LIMIT :limit
    FOR UPDATE SKIP LOCKED)
RETURNING tenant_id, hour
""")
_CLEAR = text("""
DELETE FROM usage_hours
WHERE (tenant_id, hour) IN (
    SELECT * FROM unnest(CAST(:tenant_ids AS text[]), CAST(:hours AS timestamptz[])))
""")
_FILL = text("""
INSERT INTO usage_hours (tenant_id, hour, key_id, adapter_id, adapter_version_id, base_model_id,
    service_tier, num_requests, input_tokens, cached_tokens, output_tokens, reasoning_tokens,
    queue_ms, adapter_load_ms)
SELECT tenant_id, hour, key_id, adapter_id, adapter_version_id, base_model_id, service_tier,
    count(*), sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(reasoning_tokens),
    sum(queue_ms), sum(adapter_load_ms)
FROM unnest(CAST(:tenant_ids AS text[]), CAST(:hours AS timestamptz[])) AS taken (owner_id, since)
JOIN usage_ledger ON tenant_id = owner_id AND accepted_at >= since
    AND accepted_at < since + interval '1 hour'
GROUP BY tenant_id, hour, key_id, adapter_id, adapter_version_id, base_model_id, service_tier
""")


async def roll_up(session: AsyncSession, before: datetime, limit: int) -> int:
    """Roll up to `limit` stale hours that began before `before`; how many. Sets the scope."""
    await ledger_scope(session)
    rows = await session.execute(_TAKE, {"before": before, "limit": limit})
    taken = [(row[0], row[1]) for row in rows]
    if taken:
        tenant_ids, hours = map(list, zip(*taken, strict=True))
        keys = {"tenant_ids": tenant_ids, "hours": hours}
        # NOTE: statements of their own: each sees what was committed before the note was taken.
        await session.execute(_CLEAR, keys)
        await session.execute(_FILL, keys)
    return len(taken)
