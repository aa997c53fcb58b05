"""`/admin/v1/tenants`: operators create, change, suspend and delete tenants."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.audit.trail import Trail
from app.auth import require_operator
from app.context import Context
from app.etags import IfMatch
from app.idempotency.once import Once
from app.pages import Page, Paging
from app.session import RequestSession
from app.tenants import service
from app.tenants.schemas import TenantCreate, TenantDeleted, TenantPatch, TenantView

router = APIRouter(prefix="/tenants", dependencies=[Depends(require_operator)])


@router.post("", status_code=201)
async def create_tenant(
    body: TenantCreate, session: RequestSession, trail: Trail, once: Once
) -> TenantView:
    return await once.keep(TenantView.of(await service.create_tenant(session, body, trail)))


@router.get("")
async def list_tenants(session: RequestSession, paging: Paging) -> Page[TenantView]:
    rows = await service.list_tenants(session, paging)
    return paging.page(rows, TenantView.of)


@router.get("/{tenant}")
async def get_tenant(tenant: str, session: RequestSession) -> TenantView:
    return TenantView.of(await service.find_tenant(session, tenant))


@router.patch("/{tenant}")
async def change_tenant(
    tenant: str,
    body: TenantPatch,
    session: RequestSession,
    trail: Trail,
    if_match: IfMatch = None,
) -> TenantView:
    return TenantView.of(await service.change_tenant(session, tenant, body, if_match, trail))


@router.post("/{tenant}/suspend")
async def suspend_tenant(
    tenant: str,
    session: RequestSession,
    trail: Trail,
    context: Context,
    if_match: IfMatch = None,
) -> TenantView:
    suspended = await service.suspend_tenant(
        session, tenant, trail, now=context.now(), if_match=if_match
    )
    return TenantView.of(suspended)


@router.post("/{tenant}/resume")
async def resume_tenant(
    tenant: str, session: RequestSession, trail: Trail, if_match: IfMatch = None
) -> TenantView:
    return TenantView.of(await service.resume_tenant(session, tenant, trail, if_match=if_match))


@router.delete("/{tenant}")
async def delete_tenant(
    tenant: str,
    session: RequestSession,
    trail: Trail,
    erase: bool = False,
    if_match: IfMatch = None,
) -> TenantDeleted:
    return await service.delete_tenant(session, tenant, trail, erase=erase, if_match=if_match)
