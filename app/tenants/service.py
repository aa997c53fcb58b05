"""What may be done with tenants.

Knows nothing of HTTP. Invariant: a tenant is looked up in the operator's scope, and whatever is
done to what it owns happens in the tenant's own.
"""

from __future__ import annotations

import re

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.jobs_repository import REMOVAL_DELAY_S, add_job
from app.adapters.names import is_adapter_name
from app.adapters.repository import AdapterRepository
from app.db import operator_scope, tenant_scope
from app.errors import ConflictError, NotFoundError, UnprocessableError
from app.ids import new_id
from app.tables import Tenant
from app.tenants.repository import TenantRepository
from app.tenants.schemas import TenantCreate

_ID_PREFIX = "ten_"
_TENANT_ID = re.compile(r"ten_[0-9a-z]{26}")


async def create_tenant(session: AsyncSession, body: TenantCreate) -> Tenant:
    """Raises UnprocessableError for a bad slug, ConflictError for one that is taken."""
    if not is_adapter_name(body.slug) or body.slug.startswith(_ID_PREFIX):
        raise UnprocessableError(
            "A slug is 1 to 63 characters of a-z, 0-9, '.', '_' and '-', begins with a letter or "
            f"digit, is not reserved and does not begin with '{_ID_PREFIX}'.",
            code="name_invalid",
            param="slug",
        )
    await operator_scope(session)
    tenant = await TenantRepository(session).add(new_id("ten"), body)
    if tenant is None:
        raise ConflictError(
            "The slug or the external_id belongs to another tenant.", code="name_conflict"
        )
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


async def list_tenants(session: AsyncSession, after: str | None, limit: int) -> list[Tenant]:
    await operator_scope(session)
    return await TenantRepository(session).list_page(after, limit)


async def delete_tenant(session: AsyncSession, reference: str) -> Tenant:
    """Forget a tenant and all it owns; a worker removes its adapters' bytes."""
    tenant = await find_tenant(session, reference)
    for locator in await AdapterRepository(session, tenant.id).locators_of():
        await add_job(session, tenant.id, "remove", locator, delay_s=REMOVAL_DELAY_S)
    await TenantRepository(session).remove(tenant.id)
    return tenant
