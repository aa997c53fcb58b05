"""Adapters over REST, twice: for operators and, at `/v1/adapters`, for keys with `adapters:write`.

Knows no rules and no SQL. Invariant: both routers call the same functions, with the tenant that
the router's policy established.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.adapters import deletion, service
from app.adapters.alias_endpoints import alias_router
from app.adapters.download_endpoints import download_router
from app.adapters.repository import AdapterRepository
from app.adapters.residency_endpoints import residency_router
from app.adapters.schemas import AdapterCreate, AdapterPatch, AdapterView
from app.adapters.tenancy import OwnedSession, operator_for_tenant, tenant_for_itself
from app.adapters.validate_endpoints import validate_router
from app.adapters.version_endpoints import DrainSeconds, version_router
from app.audit.trail import Trail
from app.bodies import Deleted
from app.context import Context
from app.etags import IfMatch
from app.idempotency.once import Once
from app.pages import Page, Paging
from app.rollouts.endpoints import rollout_router
from app.rollouts.evaluation_endpoints import evaluation_router

router = APIRouter(prefix="/adapters")


@router.post("", status_code=201)
async def create_adapter(
    body: AdapterCreate, owned: OwnedSession, context: Context, trail: Trail, once: Once
) -> AdapterView:
    adapter = await service.create_adapter(
        owned.session, owned.tenant_id, body, context.base, trail
    )
    return await once.keep(AdapterView.of(adapter, {}))


@router.get("")
async def list_adapters(owned: OwnedSession, paging: Paging) -> Page[AdapterView]:
    adapters = AdapterRepository(owned.session, owned.tenant_id)
    rows = await adapters.list_page(paging)
    aliases = await adapters.aliases_of([row.id for row in rows])
    return paging.page(rows, lambda row: AdapterView.of(row, aliases[row.id]))


@router.get("/{adapter}")
async def get_adapter(adapter: str, owned: OwnedSession) -> AdapterView:
    row = await service.find_adapter(owned.session, owned.tenant_id, adapter)
    aliases = await AdapterRepository(owned.session, owned.tenant_id).aliases_of([row.id])
    return AdapterView.of(row, aliases[row.id])


@router.patch("/{adapter}")
async def change_adapter(
    adapter: str, body: AdapterPatch, owned: OwnedSession, trail: Trail, if_match: IfMatch = None
) -> AdapterView:
    return await service.change_adapter(
        owned.session, owned.tenant_id, adapter, body, trail, if_match=if_match
    )


@router.delete("/{adapter}")
async def delete_adapter(
    adapter: str,
    owned: OwnedSession,
    trail: Trail,
    force: bool = False,
    drain_s: DrainSeconds = None,
    erase: bool = False,
    if_match: IfMatch = None,
) -> Deleted:
    """With its versions; with its aliases and rollouts where `force` says so."""
    how = deletion.Deletion(force=force, drain_s=drain_s, erase=erase)
    deleted = await deletion.delete_adapter(
        owned.session, owned.tenant_id, adapter, how, trail, if_match=if_match
    )
    return Deleted(id=deleted.id, object="adapter")


admin_router = APIRouter(prefix="/tenants/{tenant}", dependencies=[Depends(operator_for_tenant)])
tenant_router = APIRouter(dependencies=[Depends(tenant_for_itself)])
for _router in (admin_router, tenant_router):
    _router.include_router(router)
    _router.include_router(version_router)
    _router.include_router(download_router)
    _router.include_router(validate_router)
    _router.include_router(alias_router)
    _router.include_router(rollout_router)
    _router.include_router(evaluation_router)
admin_router.include_router(residency_router)
