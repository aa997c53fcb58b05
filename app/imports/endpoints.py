"""Imports over REST, for operators and, at `/v1/adapters`, for keys with `adapters:write`.

Knows no rules and no SQL. Invariant: both routers call the same functions, with the tenant that
the router's policy established.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import StreamingResponse

from app.adapters.service import find_adapter
from app.adapters.tenancy import OwnedSession, TenantId, operator_for_tenant, tenant_for_itself
from app.audit.trail import Trail
from app.context import Context
from app.db import tenant_scope
from app.etags import IfMatch
from app.idempotency.once import Once
from app.imports import service
from app.imports.events import import_events
from app.imports.repository import ImportRepository
from app.imports.schemas import ImportCreate, ImportView
from app.pages import Page, Paging

router = APIRouter(prefix="/adapters/{adapter}/imports")


@router.post("", status_code=202)
async def create_import(
    adapter: str,
    body: ImportCreate,
    owned: OwnedSession,
    context: Context,
    trail: Trail,
    once: Once,
) -> ImportView:
    job = await service.create_import(
        owned.session, owned.tenant_id, adapter, body, context.settings, trail
    )
    return await once.keep(ImportView.of(job))


@router.get("")
async def list_imports(adapter: str, owned: OwnedSession, paging: Paging) -> Page[ImportView]:
    row = await find_adapter(owned.session, owned.tenant_id, adapter)
    imports = ImportRepository(owned.session, owned.tenant_id)
    rows = await imports.list_page(row.id, paging)
    return paging.page(rows, ImportView.of)


@router.get("/{import_id}")
async def get_import(adapter: str, import_id: str, owned: OwnedSession) -> ImportView:
    job = await service.find_import(owned.session, owned.tenant_id, adapter, import_id)
    return ImportView.of(job)


@router.get("/{import_id}/events")
async def get_events(
    adapter: str, import_id: str, tenant_id: TenantId, context: Context
) -> StreamingResponse:
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        job = await service.find_import(session, tenant_id, adapter, import_id)
        first = ImportView.of(job)
    return StreamingResponse(
        import_events(context, tenant_id, first),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


@router.post("/{import_id}/cancel")
async def cancel(
    adapter: str,
    import_id: str,
    owned: OwnedSession,
    trail: Trail,
    if_match: IfMatch = None,
) -> ImportView:
    job = await service.cancel_import(
        owned.session, owned.tenant_id, adapter, import_id, trail, if_match=if_match
    )
    return ImportView.of(job)


admin_router = APIRouter(prefix="/tenants/{tenant}", dependencies=[Depends(operator_for_tenant)])
tenant_router = APIRouter(dependencies=[Depends(tenant_for_itself)])
for _router in (admin_router, tenant_router):
    _router.include_router(router)
