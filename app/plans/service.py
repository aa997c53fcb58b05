"""What may be done with plans and limits.

Knows nothing of HTTP or of counters. Invariants: a limit that changes counts from the next request
on, in every process; every change is in the audit log; a plan that a tenant is on stays.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters import service as adapters
from app.adapters.names import is_adapter_name
from app.api_keys import service as api_keys
from app.api_keys.service import Asking
from app.audit.trail import AuditTrail
from app.db import operator_scope, tenant_scope
from app.errors import ConflictError, NotFoundError, UnprocessableError
from app.etags import check_etag
from app.ids import new_id
from app.pages import PageQuery
from app.plans.assignment import check_shares, find_plan, lock_shares
from app.plans.repository import PlanRepository, lock_shared, plan_of
from app.plans.schemas import (
    LimitsView,
    PlanCreate,
    PlanPut,
    PlanView,
    SubjectLimits,
    TenantLimitsPut,
    TenantLimitsView,
)
from app.plans.terms import adapter_limits, key_limits, tenant_terms
from app.session import principals_changed
from app.settings import Settings
from app.tables import Adapter, ApiKey, Plan, Tenant
from app.tenants.repository import TenantRepository
from app.tenants.service import find_tenant
from app.uploads.quotas import quota_layers, quotas_in_force


async def create_plan(session: AsyncSession, body: PlanCreate, trail: AuditTrail) -> Plan:
    """Raises UnprocessableError for a bad name, ConflictError for one that is taken."""
    if not is_adapter_name(body.name):
        raise UnprocessableError(
            "A plan's name is 1 to 63 characters of a-z, 0-9, '.', '_' and '-', begins with a "
            "letter or digit, and is not reserved.",
            code="name_invalid",
            param="name",
        )
    await operator_scope(session)
    plan = await PlanRepository(session).add(new_id("pln"), body.name, _values(body))
    if plan is None:
        raise ConflictError("There is a plan of this name.", code="name_conflict", param="name")
    await trail.record_for_fleet(session, "plan.created", plan.id, after=PlanView.of(plan))
    return plan


async def list_plans(session: AsyncSession, page: PageQuery) -> list[Plan]:
    await operator_scope(session)
    return await PlanRepository(session).list_page(page)


async def put_plan(
    session: AsyncSession, name: str, body: PlanPut, if_match: str | None, trail: AuditTrail
) -> Plan:
    """Replace what the plan says, for all its tenants at once.

    Raises ConflictError (`share_exceeded`), as everything here that changes a reserved share, and
    as `check_etag`.
    """
    await lock_shares(session)
    plan = await find_plan(session, name)
    before = PlanView.of(plan)
    check_etag(before.etag, if_match)
    _assign(plan, body)
    await session.flush()
    await check_shares(session)
    principals_changed(session)
    view = PlanView.of(plan)
    await trail.record_for_fleet(session, "plan.changed", plan.id, before=before, after=view)
    return plan


async def delete_plan(
    session: AsyncSession, name: str, if_match: str | None, trail: AuditTrail
) -> Plan:
    """Raises ConflictError while a tenant is on it, and as `check_etag`."""
    await lock_shares(session)
    plan = await find_plan(session, name)
    before = PlanView.of(plan)
    check_etag(before.etag, if_match)
    if await PlanRepository(session).is_used(plan.id):
        raise ConflictError("Tenants are on this plan.", code="plan_in_use", param="plan")
    await PlanRepository(session).remove(plan.id)
    await trail.record_for_fleet(session, "plan.deleted", plan.id, before=before)
    return plan


async def show_tenant(
    session: AsyncSession, reference: str, settings: Settings
) -> TenantLimitsView:
    """What a tenant is held to, and who says so."""
    tenant = await find_tenant(session, reference)
    plan = await plan_of(session, tenant)
    quotas = quotas_in_force(quota_layers(tenant, plan))
    return TenantLimitsView.of(tenant.limits, plan, tenant_terms(tenant, plan, settings), quotas)


async def put_tenant_plan(
    session: AsyncSession,
    reference: str,
    name: str | None,
    if_match: str | None,
    settings: Settings,
    trail: AuditTrail,
) -> TenantLimitsView:
    """Raises NotFoundError where there is no such tenant or plan; and as `check_etag`."""
    tenant = await _lock_tenant(session, reference)
    before = await show_tenant(session, tenant.id, settings)
    check_etag(before.etag, if_match)
    plan = None if name is None else await find_plan(session, name)
    await tenant_scope(session, tenant.id)
    tenant.plan_id = None if plan is None else plan.id
    return await _changed(session, tenant, before, settings, trail)


async def put_tenant_limits(
    session: AsyncSession,
    reference: str,
    body: TenantLimitsPut,
    if_match: str | None,
    settings: Settings,
    trail: AuditTrail,
) -> TenantLimitsView:
    """Replace what the tenant has of its own. Raises NotFoundError, and as `check_etag`."""
    tenant = await _lock_tenant(session, reference)
    before = await show_tenant(session, tenant.id, settings)
    check_etag(before.etag, if_match)
    _assign(tenant, body)
    # For processes from before there was `limits`, while the last of them are replaced.
    tenant.concurrency = body.limits.concurrency or None
    tenant.queue_depth = body.limits.queue_depth or None
    return await _changed(session, tenant, before, settings, trail)


async def find_key(session: AsyncSession, reference: str, key_id: str, trail: AuditTrail) -> ApiKey:
    tenant = await find_tenant(session, reference)
    return await api_keys.find_key(Asking(session, tenant.id, None, trail, trail.at), key_id)


async def put_key_limits(
    session: AsyncSession,
    reference: str,
    key_id: str,
    body: SubjectLimits,
    if_match: str | None,
    trail: AuditTrail,
) -> ApiKey:
    """Replace the limits of the key, and of those that are counted as one with it.

    Each of them has an event. Raises NotFoundError, and as `check_etag`.
    """
    found = await find_key(session, reference, key_id, trail)
    keys = await lock_shared(session, found)
    key = next((each for each in keys if each.id == found.id), None)
    if key is None:  # deleted while we waited for the lock
        raise NotFoundError("No such key.", param="key")
    check_etag(LimitsView.of_subject(key.limits, key_limits(key)).etag, if_match)
    for each in keys:
        await _put_limits(session, each, "key.limits_changed", body, trail)
    return key


async def find_adapter(session: AsyncSession, reference: str, adapter: str) -> Adapter:
    tenant = await find_tenant(session, reference)
    return await adapters.find_adapter(session, tenant.id, adapter)


async def put_adapter_limits(
    session: AsyncSession,
    reference: str,
    adapter: str,
    body: SubjectLimits,
    if_match: str | None,
    trail: AuditTrail,
) -> Adapter:
    """Replace the adapter's limits. Raises NotFoundError, and as `check_etag`."""
    tenant = await find_tenant(session, reference)
    row = await adapters.lock_adapter(session, tenant.id, adapter)
    check_etag(LimitsView.of_subject(row.limits, adapter_limits(row.id, row.limits)).etag, if_match)
    await _put_limits(session, row, "adapter.limits_changed", body, trail)
    return row


async def _lock_tenant(session: AsyncSession, reference: str) -> Tenant:
    """A tenant whose share may change. Leaves the session in its scope. Raises NotFoundError."""
    await lock_shares(session)
    found = await find_tenant(session, reference)
    tenant = await TenantRepository(session).lock(found.id)
    if tenant is None:  # deleted while we waited for the lock
        raise NotFoundError("No such tenant.", param="tenant")
    return tenant


async def _changed(
    session: AsyncSession,
    tenant: Tenant,
    before: TenantLimitsView,
    settings: Settings,
    trail: AuditTrail,
) -> TenantLimitsView:
    await session.flush()
    await check_shares(session)
    principals_changed(session)
    after = await show_tenant(session, tenant.id, settings)
    await trail.record(
        session, tenant.id, "tenant.limits_changed", tenant.id, before=before, after=after
    )
    return after


async def _put_limits(
    session: AsyncSession,
    row: ApiKey | Adapter,
    action: str,
    body: SubjectLimits,
    trail: AuditTrail,
) -> None:
    before, row.limits = row.limits, body.stored()
    await session.flush()
    principals_changed(session)
    await trail.record(session, row.tenant_id, action, row.id, before=before, after=row.limits)


def _values(body: PlanPut) -> dict[str, object]:
    return {
        "limits": body.limits.stored(),
        "weight": body.weight,
        "reserved_share": body.reserved_share,
        "allows_priority": body.allows_priority,
    }


def _assign(row: Plan | Tenant, body: PlanPut) -> None:
    for name, value in _values(body).items():
        setattr(row, name, value)
