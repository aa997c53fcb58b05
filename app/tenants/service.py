"""What may be done with tenants.

Knows nothing of HTTP. Invariants: a tenant is looked up in the operator's scope, and whatever is
done to what it owns happens in the tenant's own; every change is in the audit log, which outlives
the tenant as the ledger does.
"""

from __future__ import annotations

import re
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.jobs_repository import REMOVAL_DELAY_S, add_job
from app.adapters.names import is_adapter_name
from app.adapters.repository import AdapterRepository
from app.audit.trail import TENANT_CREATED, AuditTrail
from app.db import operator_scope, tenant_scope
from app.errors import ConflictError, NotFoundError, UnprocessableError
from app.etags import check_etag
from app.files.repository import FileRepository
from app.ids import new_id
from app.pages import PageQuery
from app.plans.assignment import check_shares, find_plan, lock_shares
from app.session import principals_changed
from app.tables import Tenant
from app.tenants.repository import TenantRepository
from app.tenants.schemas import TenantCreate, TenantDeleted, TenantPatch, TenantView

_ID_PREFIX = "ten_"
_TENANT_ID = re.compile(r"ten_[0-9a-z]{26}")


async def create_tenant(session: AsyncSession, body: TenantCreate, trail: AuditTrail) -> Tenant:
    """Raises UnprocessableError for a bad slug, NotFoundError for a plan that is not there.

    Raises ConflictError for a slug that is taken, and where the plan reserves too much.
    """
    if not is_adapter_name(body.slug) or body.slug.startswith(_ID_PREFIX):
        raise UnprocessableError(
            "A slug is 1 to 63 characters of a-z, 0-9, '.', '_' and '-', begins with a letter or "
            f"digit, is not reserved and does not begin with '{_ID_PREFIX}'.",
            code="name_invalid",
            param="slug",
        )
    plan_id = None
    if body.plan is not None:
        await lock_shares(session)
        plan_id = (await find_plan(session, body.plan)).id
    await operator_scope(session)
    tenant = await TenantRepository(session).add(new_id("ten"), body, plan_id)
    if tenant is None:
        raise ConflictError(
            "The slug or the external_id belongs to another tenant.", code="name_conflict"
        )
    if plan_id is not None:
        await check_shares(session)
    view = TenantView.of(tenant)
    await trail.record_for_fleet(session, TENANT_CREATED, tenant.id, after=view)
    await tenant_scope(session, tenant.id)
    await trail.record(session, tenant.id, TENANT_CREATED, tenant.id, after=view)
    return tenant


async def find_tenant(session: AsyncSession, reference: str) -> Tenant:
    """A tenant by id or slug. Leaves the session in that tenant's scope. Raises NotFoundError."""
    await operator_scope(session)
    tenants = TenantRepository(session)
    tenant = None
    if _TENANT_ID.fullmatch(reference):
        tenant = await tenants.get_by_id(reference)
    elif is_adapter_name(reference):
        tenant = await tenants.get_by_slug(reference)
    if tenant is None:
        raise NotFoundError("No such tenant.", param="tenant")
    await tenant_scope(session, tenant.id)
    return tenant


async def list_tenants(session: AsyncSession, page: PageQuery) -> list[Tenant]:
    await operator_scope(session)
    return await TenantRepository(session).list_page(page)


async def change_tenant(
    session: AsyncSession,
    reference: str,
    patch: TenantPatch,
    if_match: str | None,
    trail: AuditTrail,
) -> Tenant:
    """Raises NotFoundError, ConflictError (`name_conflict`), or as `check_etag`."""
    tenant = await _lock_tenant(session, reference, if_match)
    before = TenantView.of(tenant)
    sent = patch.model_fields_set
    if "external_id" in sent:
        tenant.external_id = patch.external_id
    if "metadata" in sent:
        tenant.labels = patch.metadata
    if "allowed_bases" in sent:
        tenant.allowed_bases = patch.allowed_bases
    if "data_policy" in sent:
        tenant.stores_prompts = patch.data_policy.store_prompts
        tenant.prompt_retention_days = patch.data_policy.retention_days
    if not await TenantRepository(session).try_flush():
        raise ConflictError("The external_id belongs to another tenant.", code="name_conflict")
    if "data_policy" in sent and patch.data_policy.retention_days is not None:
        files = FileRepository(session, tenant.id)
        await files.cut_retention(patch.data_policy.retention_days)
    await _record(session, "tenant.changed", before, tenant, trail)
    return tenant


async def suspend_tenant(
    session: AsyncSession,
    reference: str,
    trail: AuditTrail,
    *,
    now: datetime,
    if_match: str | None = None,
) -> Tenant:
    """Refuse its new requests; those that run finish. A second call changes nothing.

    This, and what follows, raises as `check_etag` too.
    """
    tenant = await _lock_tenant(session, reference, if_match)
    if tenant.suspended_at is None:
        before = TenantView.of(tenant)
        tenant.suspended_at = now
        await session.flush()
        await _record(session, "tenant.suspended", before, tenant, trail)
    return tenant


async def resume_tenant(
    session: AsyncSession, reference: str, trail: AuditTrail, *, if_match: str | None = None
) -> Tenant:
    """Take its requests again. A second call changes nothing."""
    tenant = await _lock_tenant(session, reference, if_match)
    if tenant.suspended_at is not None:
        before = TenantView.of(tenant)
        tenant.suspended_at = None
        await session.flush()
        await _record(session, "tenant.resumed", before, tenant, trail)
    return tenant


async def delete_tenant(
    session: AsyncSession,
    reference: str,
    trail: AuditTrail,
    *,
    erase: bool,
    if_match: str | None = None,
) -> TenantDeleted:
    """Forget a tenant and all it owns; a worker removes its adapters' and its files' bytes.

    Those of requests that still run stay for `REMOVAL_DELAY_S`, unless they are to be erased now.
    """
    tenant = await _lock_tenant(session, reference, if_match)
    before = TenantView.of(tenant)
    tenants = TenantRepository(session)
    delay_s = 0 if erase else REMOVAL_DELAY_S
    deleted = TenantDeleted(
        id=tenant.id, erased=await tenants.count_owned(tenant.id), bytes_gone_within_s=delay_s
    )
    for locator in await AdapterRepository(session, tenant.id).locators_of():
        await add_job(session, tenant.id, "remove", locator, delay_s=delay_s)
    await FileRepository(session, tenant.id).remove_all(trail.at)
    await tenants.remove(tenant.id)
    principals_changed(session)
    await trail.record_for_fleet(session, "tenant.deleted", tenant.id, before=before, after=deleted)
    await tenant_scope(session, tenant.id)
    await trail.record(
        session, tenant.id, "tenant.deleted", tenant.id, before=before, after=deleted
    )
    return deleted


async def _lock_tenant(session: AsyncSession, reference: str, if_match: str | None) -> Tenant:
    found = await find_tenant(session, reference)
    tenant = await TenantRepository(session).lock(found.id)
    if tenant is None:  # deleted while we waited for the lock
        raise NotFoundError("No such tenant.", param="tenant")
    check_etag(TenantView.of(tenant).etag, if_match)
    return tenant


async def _record(
    session: AsyncSession, action: str, before: TenantView, tenant: Tenant, trail: AuditTrail
) -> None:
    principals_changed(session)
    await trail.record(
        session, tenant.id, action, tenant.id, before=before, after=TenantView.of(tenant)
    )
