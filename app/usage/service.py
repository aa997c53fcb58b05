"""Reads what was used, for one tenant or for all: in pages of buckets, or as a table.

Knows nothing of HTTP. Invariant: borders are those of whole buckets, so that pages put together are
the whole, and an hour lies in one day.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import BadRequestError
from app.tenants.service import find_tenant
from app.usage.repository import Group, UsageRow, read_usage
from app.usage.schemas import (
    DEFAULT_BUCKETS,
    MAX_BUCKETS,
    WIDTHS,
    Amount,
    BucketWidth,
    UsageBucket,
    UsagePage,
    UsageResult,
    together,
)

MAX_ROWS = 50_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TENANT_ID = re.compile(r"ten_[0-9a-z]{26}")
_FIELDS = tuple(name for name in UsageResult.model_fields if name not in ("object", "amounts"))


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Buckets from the one that `start` lies in to the one before `end`'s border."""

    start: datetime
    end: datetime
    bucket_width: BucketWidth
    group_by: frozenset[Group]
    limit: int | None = None

    @property
    def width(self) -> timedelta:
        return WIDTHS[self.bucket_width]

    def num_buckets(self) -> int:
        """Asked for at once. Raises BadRequestError where that is too much."""
        most, asked = MAX_BUCKETS[self.bucket_width], self.limit
        if asked is not None and asked > most:
            raise BadRequestError(
                f"At most {most} buckets of {self.bucket_width} are shown at once.", param="limit"
            )
        return DEFAULT_BUCKETS[self.bucket_width] if asked is None else asked

    def borders(self) -> tuple[datetime, datetime]:
        """Rounded outwards to whole buckets. Raises BadRequestError where there is none between."""
        since = _floor(self.start, self.width)
        until = -_floor_span(_EPOCH - self.end, self.width) + _EPOCH
        if since >= until:
            raise BadRequestError("end_time must be after start_time.", param="end_time")
        return since, until


async def tenant_id_of(session: AsyncSession, reference: str) -> str:
    """The id of a tenant by id or slug; by its id also of one that was deleted: its bill stays.

    Raises NotFoundError for an unknown slug.
    """
    if _TENANT_ID.fullmatch(reference):
        return reference
    return (await find_tenant(session, reference)).id


async def usage_page(
    session: AsyncSession, query: UsageQuery, tenant_id: str | None = None
) -> UsagePage:
    """Every bucket, also those in which nothing was used. Of all tenants where there is none."""
    since, until = query.borders()
    page_end = min(until, since + query.num_buckets() * query.width)
    found = together(await _read(session, query, since, page_end, tenant_id))
    buckets = []
    while since < page_end:
        results = [used.view() for used in found.get(since, [])]
        end = since + query.width
        buckets.append(UsageBucket(start_time=since, end_time=end, results=results))
        since = end
    has_more = page_end < until
    next_page = str(int(page_end.timestamp())) if has_more else None
    return UsagePage(data=buckets, has_more=has_more, next_page=next_page)


async def usage_csv(session: AsyncSession, query: UsageQuery, tenant_id: str | None = None) -> str:
    """A line for each group of each bucket that has one (RFC 4180), the whole time at once.

    Where there are several currencies, `amount` and `currency` list them in the same order.
    """
    since, until = query.borders()
    if (until - since) / query.width > MAX_BUCKETS[query.bucket_width]:
        raise BadRequestError(
            f"A table has at most {MAX_BUCKETS[query.bucket_width]} buckets of"
            f" {query.bucket_width}.",
            param="end_time",
        )
    found = together(await _read(session, query, since, until, tenant_id))
    table = io.StringIO()
    lines = csv.writer(table)
    lines.writerow(("start_time", "end_time", *_FIELDS, "amount", "currency"))
    for start, groups in found.items():
        for result in (used.view() for used in groups):
            line = [start.isoformat(), (start + query.width).isoformat()]
            line += ["" if (value := getattr(result, name)) is None else value for name in _FIELDS]
            lines.writerow((*line, *_money(result.amounts)))
    return table.getvalue()


def _money(amounts: list[Amount]) -> tuple[str, str]:
    return " ".join(each.value for each in amounts), " ".join(each.currency for each in amounts)


async def _read(
    session: AsyncSession,
    query: UsageQuery,
    since: datetime,
    until: datetime,
    tenant_id: str | None,
) -> list[UsageRow]:
    rows = await read_usage(
        session,
        since,
        until,
        query.width,
        query.group_by,
        tenant_id=tenant_id,
        limit=MAX_ROWS + 1,
    )
    if len(rows) > MAX_ROWS:
        raise BadRequestError(
            f"That is more than {MAX_ROWS} rows: ask for less time or fewer groups.",
            param="group_by",
        )
    return rows


def _floor(at: datetime, width: timedelta) -> datetime:
    return _EPOCH + _floor_span(at - _EPOCH, width)


def _floor_span(span: timedelta, width: timedelta) -> timedelta:
    return span // width * width
