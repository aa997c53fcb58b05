"""What was used: `/usage` for tenants themselves, `/usage` and `/reconcile` for operators.

Knows no SQL. Invariant: a tenant's answer is read in the tenant's own scope.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from app.auth import Principal, require_operator, require_usage_read
from app.context import Context
from app.db import billing_scope, tenant_scope
from app.errors import BadRequestError
from app.session import RequestSession
from app.usage.reconcile import Reconciliation, reconcile
from app.usage.repository import Group
from app.usage.schemas import BucketWidth, Format, UsagePage
from app.usage.service import UsageQuery, tenant_id_of, usage_csv, usage_page

CSV_TYPE = "text/csv; charset=utf-8; header=present"
MAX_TIME = int(datetime(3000, 1, 1, tzinfo=UTC).timestamp())
MAX_RECONCILED = timedelta(days=31)

Seconds = Annotated[int, Query(ge=0, le=MAX_TIME)]


def usage_query(
    context: Context,
    start_time: Seconds,
    end_time: Annotated[int | None, Query(ge=0, le=MAX_TIME)] = None,
    bucket_width: BucketWidth = "1d",
    group_by: Annotated[list[Group], Query()] = [],  # noqa: B006 (FastAPI copies it)
    limit: Annotated[int | None, Query(ge=1)] = None,
    page: Annotated[str | None, Query(pattern=r"^\d{1,11}$")] = None,
) -> UsageQuery:
    """What both routes take. `page` is a `next_page`: where the next page begins."""
    start = max(start_time, int(page or 0))
    if start > MAX_TIME:
        raise BadRequestError("There is no such page.", param="page")
    end = context.now() if end_time is None else _time(end_time)
    return UsageQuery(_time(start), end, bucket_width, frozenset(group_by), limit)


Asked = Annotated[UsageQuery, Depends(usage_query)]

tenant_router = APIRouter()
admin_router = APIRouter(dependencies=[Depends(require_operator)])


@tenant_router.get("/usage", response_model=UsagePage)
async def get_own_usage(
    principal: Annotated[Principal, Depends(require_usage_read)],
    session: RequestSession,
    query: Asked,
    format: Format = "json",
) -> UsagePage | Response:
    if "tenant" in query.group_by:
        raise BadRequestError("Usage is your own: it has one tenant.", param="group_by")
    await tenant_scope(session, principal.tenant_id)
    if format == "csv":
        return _csv(await usage_csv(session, query, principal.tenant_id))
    return await usage_page(session, query, principal.tenant_id)


@admin_router.get("/usage", response_model=UsagePage)
async def get_usage(
    session: RequestSession, query: Asked, tenant: str | None = None, format: Format = "json"
) -> UsagePage | Response:
    tenant_id = None if tenant is None else await tenant_id_of(session, tenant)
    await billing_scope(session)
    if format == "csv":
        return _csv(await usage_csv(session, query, tenant_id))
    return await usage_page(session, query, tenant_id)


@admin_router.get("/reconcile")
async def get_reconciliation(
    session: RequestSession,
    context: Context,
    start_time: Seconds,
    end_time: Annotated[int | None, Query(ge=0, le=MAX_TIME)] = None,
    tenant: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Reconciliation:
    tenant_id = None if tenant is None else await tenant_id_of(session, tenant)
    end = context.now() if end_time is None else _time(end_time)
    since, until = UsageQuery(_time(start_time), end, "1h", frozenset()).borders()
    if until - since > MAX_RECONCILED:
        raise BadRequestError(
            f"At most {MAX_RECONCILED.days} days are compared at once.", param="end_time"
        )
    await billing_scope(session)
    return await reconcile(session, since, until, tenant_id=tenant_id, limit=limit)


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _csv(table: str) -> Response:
    return Response(table, media_type=CSV_TYPE)
