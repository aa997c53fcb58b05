"""`/admin/v1/tenants`: operators create, list, read and delete tenants."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.auth import require_operator
from app.bodies import Deleted
from app.pages import Page, Paging
from app.session import RequestSession
from app.tenants import service
from app.tenants.schemas import TenantCreate, TenantView

router = APIRouter(prefix="/tenants", dependencies=[Depends(require_operator)])


@router.post("", status_code=201)
async def create_tenant(body: TenantCreate, session: RequestSession) -> TenantView:
    return TenantView.of(await service.create_tenant(session, body))


@router.get("")
async def list_tenants(session: RequestSession, paging: Paging) -> Page[TenantView]:
    rows = await service.list_tenants(session, paging.after, paging.num_rows)
    return paging.page(rows, TenantView.of)


@router.get("/{tenant}")
async def get_tenant(tenant: str, session: RequestSession) -> TenantView:
    return TenantView.of(await service.find_tenant(session, tenant))


@router.delete("/{tenant}")
async def delete_tenant(tenant: str, session: RequestSession) -> Deleted:
    deleted = await service.delete_tenant(session, tenant)
    return Deleted(id=deleted.id, object="tenant")
