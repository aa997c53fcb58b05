"""The SQL that reads what was used, in buckets of time, and what that costs.

Knows nothing of rights: the session is in a tenant's scope, or in that of billing. Invariant: an
answer says what the ledger says at that moment; roll-ups are read for the hours that have not
changed since they were made, and the ledger itself for the others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from sqlalchemy import (
    CTE,
    DateTime,
    TextClause,
    column,
    func,
    literal,
    select,
    text,
    true,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.selectable import LateralFromClause

from app.prices.tables import Price

Group = Literal["tenant", "key", "adapter", "version", "base", "tier"]

COLUMNS: dict[Group, str] = {
    "tenant": "tenant_id",
    "key": "key_id",
    "adapter": "adapter_id",
    "version": "adapter_version_id",
    "base": "base_model_id",
    "tier": "service_tier",
}
MEASURES = (
    "num_requests",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "queue_ms",
    "adapter_load_ms",
)
HOUR = timedelta(hours=1)
_EPOCH = literal(datetime(1970, 1, 1, tzinfo=UTC), DateTime(timezone=True))
_MILLIONTH = Decimal("0.000001")

_BY_HOUR = text("""
SELECT tenant_id, hour, hour AS at, key_id, adapter_id, adapter_version_id, base_model_id,
    service_tier, num_requests, input_tokens, cached_tokens, output_tokens, reasoning_tokens,
    queue_ms, adapter_load_ms
FROM usage_hours
WHERE hour >= :since AND hour < :until
    AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)
    AND NOT EXISTS (SELECT FROM usage_stale_hours stale
        WHERE stale.tenant_id = usage_hours.tenant_id AND stale.hour = usage_hours.hour)
UNION ALL
SELECT l.tenant_id, stale.hour, stale.hour, key_id, adapter_id, adapter_version_id, base_model_id,
    service_tier, count(*), sum(input_tokens), sum(cached_tokens), sum(output_tokens),
    sum(reasoning_tokens), sum(queue_ms), sum(adapter_load_ms)
FROM usage_stale_hours stale JOIN usage_ledger l ON l.tenant_id = stale.tenant_id
    AND l.accepted_at >= stale.hour AND l.accepted_at < stale.hour + interval '1 hour'
WHERE stale.hour >= :since AND stale.hour < :until
    AND (CAST(:tenant_id AS text) IS NULL OR stale.tenant_id = :tenant_id)
GROUP BY l.tenant_id, stale.hour, key_id, adapter_id, adapter_version_id, base_model_id,
    service_tier
""")
_BY_MINUTE = text("""
SELECT tenant_id, hour, date_trunc('minute', accepted_at, 'UTC') AS at, key_id, adapter_id,
    adapter_version_id, base_model_id, service_tier, count(*) AS num_requests,
    sum(input_tokens) AS input_tokens, sum(cached_tokens) AS cached_tokens,
    sum(output_tokens) AS output_tokens, sum(reasoning_tokens) AS reasoning_tokens,
    sum(queue_ms) AS queue_ms, sum(adapter_load_ms) AS adapter_load_ms
FROM usage_ledger
WHERE accepted_at >= :since AND accepted_at < :until
    AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
""")


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one group used in the bucket that starts at `start`, as far as it has one price.

    `group` holds a value for each column that was grouped by. `amount` and `currency` are None
    where no price was in force.
    """

    start: datetime
    group: dict[str, str]
    measures: dict[str, int]
    currency: str | None
    amount: Decimal | None


async def read_usage(
    session: AsyncSession,
    since: datetime,
    until: datetime,
    width: timedelta,
    groups: Collection[Group],
    *,
    tenant_id: str | None,
    limit: int,
) -> list[UsageRow]:
    """Up to `limit` rows, by time and group. `since` and `until` are borders of buckets."""
    used = _used(_BY_MINUTE if width < HOUR else _BY_HOUR)
    price = _price_of(used)
    bucket = func.date_bin(width, used.c.at, _EPOCH).label("start")
    names = [COLUMNS[group] for group in COLUMNS if group in groups]
    keys = [bucket, *(used.c[name] for name in names), price.c.currency]
    query = (
        select(*keys, *(func.sum(used.c[name]) for name in MEASURES), _amount(used, price))
        .select_from(used.outerjoin(price, true()))
        .group_by(*keys)
        .order_by(*keys)
        .limit(limit)
    )
    bounds = {"since": since, "until": until, "tenant_id": tenant_id}
    return [_row(names, list(row)) for row in await session.execute(query, bounds)]


def _used(source: TextClause) -> CTE:
    names = ("hour", "at", *COLUMNS.values(), *MEASURES)
    return source.columns(*(column(name) for name in names)).cte("used")


def _price_of(used: CTE) -> LateralFromClause:
    """The price in force in the row's hour: the tenant's own, else everybody's."""
    return (
        select(Price.currency, Price.input_price, Price.cached_price, Price.output_price)
        .where(
            Price.base_model_id == used.c.base_model_id,
            Price.effective_at <= used.c.hour,
            Price.tenant_id.is_(None) | (Price.tenant_id == used.c.tenant_id),
        )
        .order_by(Price.tenant_id.nulls_last(), Price.effective_at.desc())
        .limit(1)
        .lateral("price")
    )


def _amount(used: CTE, price: LateralFromClause) -> Any:
    """Exact: `numeric` all the way."""
    cost = (
        (used.c.input_tokens - used.c.cached_tokens) * price.c.input_price
        + used.c.cached_tokens * price.c.cached_price
        + used.c.output_tokens * price.c.output_price
    )
    return func.sum(cost) * literal(_MILLIONTH)


def _row(names: list[str], values: list[Any]) -> UsageRow:
    start, *found = values
    num = len(names)
    return UsageRow(
        start=start,
        group=dict(zip(names, found[:num], strict=True)),
        currency=found[num],
        measures={name: int(n) for name, n in zip(MEASURES, found[num + 1 : -1], strict=True)},
        amount=found[-1],
    )
