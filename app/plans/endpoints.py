"""`/admin/v1/plans`, and the limits of tenants, keys and adapters.

Knows no rules and no SQL. With `?dry_run=1` a PUT answers what would be in force, and is undone.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.audit.trail import Trail
from app.auth import require_operator
from app.bodies import Deleted
from app.context import Context
from app.etags import IfMatch
from app.idempotency.once import Once
from app.pages import Page, Paging
from app.plans import service
from app.plans.assignment import find_plan
from app.plans.schemas import (
    LimitsView,
    PlanCreate,
    PlanPut,
    PlanView,
    SubjectLimits,
    TenantLimitsPut,
    TenantLimitsView,
    TenantPlanPut,
)
from app.plans.terms import adapter_limits, key_limits
from app.session import RequestSession

DryRun = Annotated[bool, Query()]

plans = APIRouter(prefix="/plans", dependencies=[Depends(require_operator)])
limits = APIRouter(prefix="/tenants/{tenant}", dependencies=[Depends(require_operator)])


@plans.post("", status_code=201)
async def create_plan(
    body: PlanCreate, session: RequestSession, trail: Trail, once: Once
) -> PlanView:
    return await once.keep(PlanView.of(await service.create_plan(session, body, trail)))


@plans.get("")
async def list_plans(session: RequestSession, paging: Paging) -> Page[PlanView]:
    rows = await service.list_plans(session, paging)
    return paging.page(rows, PlanView.of)


@plans.get("/{plan}")
async def get_plan(plan: str, session: RequestSession) -> PlanView:
    return PlanView.of(await find_plan(session, plan))


@plans.put("/{plan}")
async def put_plan(
    plan: str, body: PlanPut, session: RequestSession, trail: Trail, if_match: IfMatch = None
) -> PlanView:
    return PlanView.of(await service.put_plan(session, plan, body, if_match, trail))


@plans.delete("/{plan}")
async def delete_plan(
    plan: str, session: RequestSession, trail: Trail, if_match: IfMatch = None
) -> Deleted:
    deleted = await service.delete_plan(session, plan, if_match, trail)
    return Deleted(id=deleted.id, object="plan")


@limits.get("/limits")
async def get_tenant_limits(
    tenant: str, session: RequestSession, context: Context
) -> TenantLimitsView:
    return await service.show_tenant(session, tenant, context.settings)


@limits.put("/limits")
async def put_tenant_limits(
    tenant: str,
    body: TenantLimitsPut,
    session: RequestSession,
    context: Context,
    trail: Trail,
    dry_run: DryRun = False,
    if_match: IfMatch = None,
) -> TenantLimitsView:
    shown = await service.put_tenant_limits(
        session, tenant, body, if_match, context.settings, trail
    )
    if dry_run:
        await session.rollback()
    return shown


@limits.put("/plan")
async def put_tenant_plan(
    tenant: str,
    body: TenantPlanPut,
    session: RequestSession,
    context: Context,
    trail: Trail,
    dry_run: DryRun = False,
    if_match: IfMatch = None,
) -> TenantLimitsView:
    shown = await service.put_tenant_plan(
        session, tenant, body.plan, if_match, context.settings, trail
    )
    if dry_run:
        await session.rollback()
    return shown


@limits.get("/keys/{key}/limits")
async def get_key_limits(
    tenant: str, key: str, session: RequestSession, trail: Trail
) -> LimitsView:
    row = await service.find_key(session, tenant, key, trail)
    return LimitsView.of_subject(row.limits, key_limits(row))


@limits.put("/keys/{key}/limits")
async def put_key_limits(
    tenant: str,
    key: str,
    body: SubjectLimits,
    session: RequestSession,
    trail: Trail,
    if_match: IfMatch = None,
) -> LimitsView:
    row = await service.put_key_limits(session, tenant, key, body, if_match, trail)
    return LimitsView.of_subject(row.limits, key_limits(row))


@limits.get("/adapters/{adapter}/limits")
async def get_adapter_limits(tenant: str, adapter: str, session: RequestSession) -> LimitsView:
    row = await service.find_adapter(session, tenant, adapter)
    return LimitsView.of_subject(row.limits, adapter_limits(row.id, row.limits))


@limits.put("/adapters/{adapter}/limits")
async def put_adapter_limits(
    tenant: str,
    adapter: str,
    body: SubjectLimits,
    session: RequestSession,
    trail: Trail,
    if_match: IfMatch = None,
) -> LimitsView:
    row = await service.put_adapter_limits(session, tenant, adapter, body, if_match, trail)
    return LimitsView.of_subject(row.limits, adapter_limits(row.id, row.limits))
