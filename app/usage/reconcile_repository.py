"""The SQL that compares what must be equal: acceptances, ledger, roll-ups, exports.

Knows nothing of what made a difference. Invariant: each comparison is one statement, and so of one
moment; what is only on its way (open requests, stale hours, pending exports) is counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Text, TextClause, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.types import TypeEngine

# NOTE: what `app.usage.cloud_events` sends is built here once more, from the row itself: a field
# that is sent and not compared would be one that nobody vouches for.
# Each yields: tenant_id, request_id, hour, expected, found, and how many rows there are in all.
DIFFERENCES: dict[str, TextClause] = {
    "not_in_ledger": text("""
SELECT r.tenant_id, r.request_id, date_trunc('hour', r.accepted_at, 'UTC') AS hour,
    jsonb_build_object('state', r.state) AS expected, NULL::jsonb AS found, count(*) OVER () AS num
FROM requests r LEFT JOIN request_events e ON e.tenant_id = r.tenant_id
    AND e.request_id = r.request_id AND e.event = 'final'
WHERE r.accepted_at >= :since AND r.accepted_at < :until AND r.state = 'ended'
    AND e.request_id IS NULL
    AND (CAST(:tenant_id AS text) IS NULL OR r.tenant_id = :tenant_id)
ORDER BY 1, 2 LIMIT :limit
"""),
    "not_accepted": text("""
SELECT l.tenant_id, l.request_id, l.hour, NULL::jsonb AS expected,
    jsonb_build_object('finish_reason', finish_reason, 'output_tokens', output_tokens) AS found,
    count(*) OVER () AS num
FROM usage_ledger l LEFT JOIN requests r ON r.tenant_id = l.tenant_id
    AND r.request_id = l.request_id AND r.accepted_at = l.accepted_at
WHERE l.accepted_at >= :since AND l.accepted_at < :until AND r.request_id IS NULL
    AND (CAST(:tenant_id AS text) IS NULL OR l.tenant_id = :tenant_id)
ORDER BY 1, 2 LIMIT :limit
"""),
    "not_exported": text("""
SELECT l.tenant_id, l.request_id, l.hour,
    jsonb_build_object('output_tokens', output_tokens) AS expected, NULL::jsonb AS found,
    count(*) OVER () AS num
FROM usage_ledger l LEFT JOIN usage_outbox o ON o.tenant_id = l.tenant_id
    AND o.request_id = l.request_id
WHERE l.accepted_at >= :since AND l.accepted_at < :until AND o.request_id IS NULL
    AND (CAST(:tenant_id AS text) IS NULL OR l.tenant_id = :tenant_id)
ORDER BY 1, 2 LIMIT :limit
"""),
    "export_differs": text("""
WITH compared AS (
    SELECT l.tenant_id, l.request_id, l.hour,
        jsonb_build_object('tenant_id', tenant_id, 'request_id', request_id,
            'revision', o.revision, 'accepted_at', replace(to_char(accepted_at AT TIME ZONE 'UTC',
                'YYYY-MM-DD"T"HH24:MI:SS.US'), '.000000', '') || '+00:00',
            'key_id', nullif(key_id, ''), 'adapter_id', nullif(adapter_id, ''),
            'adapter_version_id', nullif(adapter_version_id, ''),
            'adapter_digest', nullif(adapter_digest, ''),
            'base_model_id', nullif(base_model_id, ''), 'service_tier', service_tier,
            'engine_id', engine_id, 'finish_reason', finish_reason,
            'input_tokens', input_tokens, 'cached_tokens', cached_tokens,
            'output_tokens', output_tokens, 'reasoning_tokens', reasoning_tokens,
            'queue_ms', queue_ms, 'adapter_load_ms', adapter_load_ms) AS expected,
        delivered AS found
    FROM usage_ledger l JOIN usage_outbox o USING (tenant_id, request_id)
    WHERE l.accepted_at >= :since AND l.accepted_at < :until
        AND o.delivered_revision = o.revision
        AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)
)
SELECT *, count(*) OVER () AS num FROM compared WHERE expected IS DISTINCT FROM found
ORDER BY 1, 2 LIMIT :limit
"""),
    "rollup_differs": text("""
WITH ledger AS (
    SELECT tenant_id, hour, key_id, adapter_id, adapter_version_id, base_model_id, service_tier,
        jsonb_build_object('num_requests', count(*), 'input_tokens', sum(input_tokens),
            'cached_tokens', sum(cached_tokens), 'output_tokens', sum(output_tokens),
            'reasoning_tokens', sum(reasoning_tokens), 'queue_ms', sum(queue_ms),
            'adapter_load_ms', sum(adapter_load_ms)) AS expected
    FROM usage_ledger
    WHERE accepted_at >= :since AND accepted_at < :until
        AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)
    GROUP BY 1, 2, 3, 4, 5, 6, 7
), rolled AS (
    SELECT tenant_id, hour, key_id, adapter_id, adapter_version_id, base_model_id, service_tier,
        jsonb_build_object('num_requests', num_requests, 'input_tokens', input_tokens,
            'cached_tokens', cached_tokens, 'output_tokens', output_tokens,
            'reasoning_tokens', reasoning_tokens, 'queue_ms', queue_ms,
            'adapter_load_ms', adapter_load_ms) AS found
    FROM usage_hours
    WHERE hour >= :since AND hour < :until
        AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)
)
SELECT tenant_id, NULL::text AS request_id, hour, expected, found, count(*) OVER () AS num
FROM ledger FULL JOIN rolled USING (tenant_id, hour, key_id, adapter_id, adapter_version_id,
    base_model_id, service_tier)
WHERE expected IS DISTINCT FROM found AND NOT EXISTS (SELECT FROM usage_stale_hours stale
    WHERE stale.tenant_id = coalesce(ledger.tenant_id, rolled.tenant_id)
        AND stale.hour = coalesce(ledger.hour, rolled.hour))
ORDER BY 1, 3 LIMIT :limit
"""),
}
_TYPES: dict[str, TypeEngine[Any] | type[TypeEngine[Any]]] = {
    "tenant_id": Text,
    "request_id": Text,
    "hour": DateTime(timezone=True),
    "expected": JSONB,
    "found": JSONB,
    "num": BigInteger,
}
_TOTALS = text("""
SELECT
    (SELECT jsonb_build_object('num_requests', count(*),
        'num_open', count(*) FILTER (WHERE state = 'accepted'))
    FROM requests WHERE accepted_at >= :since AND accepted_at < :until
        AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)) AS accepted,
    (SELECT jsonb_build_object('num_requests', count(*),
        'input_tokens', coalesce(sum(input_tokens), 0),
        'output_tokens', coalesce(sum(output_tokens), 0))
    FROM usage_ledger WHERE accepted_at >= :since AND accepted_at < :until
        AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)) AS ledger,
    (SELECT jsonb_build_object('num_requests', coalesce(sum(num_requests), 0),
        'input_tokens', coalesce(sum(input_tokens), 0),
        'output_tokens', coalesce(sum(output_tokens), 0))
    FROM usage_hours WHERE hour >= :since AND hour < :until
        AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)) AS rolled_up,
    (SELECT count(*) FROM usage_stale_hours WHERE hour >= :since AND hour < :until
        AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)) AS num_stale_hours,
    (SELECT jsonb_build_object(
        'num_requests', count(*) FILTER (WHERE delivered_revision > 0),
        'input_tokens',
            coalesce(sum(CASE jsonb_typeof(delivered->'input_tokens') WHEN 'number'
                THEN CAST(delivered->'input_tokens' AS bigint) END), 0),
        'output_tokens',
            coalesce(sum(CASE jsonb_typeof(delivered->'output_tokens') WHEN 'number'
                THEN CAST(delivered->'output_tokens' AS bigint) END), 0),
        'num_pending', count(*) FILTER (WHERE revision > delivered_revision))
    FROM usage_ledger l JOIN usage_outbox o USING (tenant_id, request_id)
    WHERE l.accepted_at >= :since AND l.accepted_at < :until
        AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)) AS exported
""").columns(
    accepted=JSONB, ledger=JSONB, rolled_up=JSONB, num_stale_hours=BigInteger, exported=JSONB
)


@dataclass(frozen=True, slots=True)
class Difference:
    """`expected` is what the side that should be right says; None where it says nothing."""

    kind: str
    tenant_id: str
    request_id: str | None
    hour: datetime
    expected: dict[str, Any] | None
    found: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Totals:
    accepted: dict[str, int]
    ledger: dict[str, int]
    rolled_up: dict[str, int]
    num_stale_hours: int
    exported: dict[str, int]


class ReconcileRepository:
    """One stretch of time, [since, until) in whole hours; the session is in billing's scope."""

    def __init__(
        self, session: AsyncSession, since: datetime, until: datetime, tenant_id: str | None
    ) -> None:
        self._session = session
        self._bounds = {"since": since, "until": until, "tenant_id": tenant_id}

    async def differences(self, kind: str, limit: int) -> tuple[int, list[Difference]]:
        """How many of this kind there are, and the first of them."""
        query = DIFFERENCES[kind].columns(**_TYPES)
        rows = (await self._session.execute(query, {**self._bounds, "limit": limit})).all()
        differences = [
            Difference(kind, row.tenant_id, row.request_id, row.hour, row.expected, row.found)
            for row in rows
        ]
        return (rows[0].num if rows else 0), differences

    async def totals(self) -> Totals:
        row = (await self._session.execute(_TOTALS, self._bounds)).one()
        return Totals(**row._mapping)
