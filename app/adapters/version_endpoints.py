"""Versions of an adapter over REST: upload, list, read, their states, delete.

Knows no rules and no SQL. Invariant: an upload holds no database connection while bytes arrive or
while it waits for the numeric check.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from app.adapters import lifecycle, service
from app.adapters.deletion import MAX_DRAIN_S, Deletion, delete_version
from app.adapters.intake import upload_version
from app.adapters.schemas import DeprecatePost, VersionView
from app.adapters.submission import Told
from app.adapters.tenancy import OwnedSession, TenantId
from app.adapters.verified import Wait, wait_until_verified
from app.adapters.versions_repository import VersionRepository
from app.audit.trail import Trail
from app.bodies import Deleted
from app.context import Context
from app.db import tenant_scope
from app.etags import IfMatch
from app.pages import Page, Paging

DAY_S = 86_400

version_router = APIRouter(prefix="/adapters/{adapter}/versions")


DrainSeconds = Annotated[int | None, Query(ge=0, le=MAX_DRAIN_S)]


def deletion_query(
    force: bool = False,
    aliases: Annotated[str | None, Query(max_length=64)] = None,
    drain_s: DrainSeconds = None,
    erase: bool = False,
) -> Deletion:
    """`aliases`, with `force`: `remove`, or the version that aliases are to mean instead."""
    return Deletion(force=force, aliases=aliases, drain_s=drain_s, erase=erase)


How = Annotated[Deletion, Depends(deletion_query)]


@version_router.post("", status_code=201)
async def create_version(
    adapter: str,
    request: Request,
    tenant_id: TenantId,
    context: Context,
    trail: Trail,
    terms: Told,
    wait: Wait = 0,
    activate: bool = True,
) -> VersionView:
    """`activate=false`: once it has passed it waits, as `validated`, to be activated.

    `strict=true`: what is otherwise a warning refuses it.
    """
    version = await upload_version(
        context, tenant_id, adapter, request, trail, terms, activates=activate
    )
    shown = VersionView.of(version)
    return await wait_until_verified(context, tenant_id, shown, wait)


@version_router.get("")
async def list_versions(adapter: str, owned: OwnedSession, paging: Paging) -> Page[VersionView]:
    row = await service.find_adapter(owned.session, owned.tenant_id, adapter)
    versions = VersionRepository(owned.session, owned.tenant_id)
    rows = await versions.list_page(row.id, paging)
    return paging.page(rows, VersionView.of)


@version_router.get("/{version}")
async def get_version(
    adapter: str, version: str, tenant_id: TenantId, context: Context, wait: Wait = 0
) -> VersionView:
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        row = await service.find_adapter(session, tenant_id, adapter)
        shown = VersionView.of(await service.find_version(session, tenant_id, row, version))
    return await wait_until_verified(context, tenant_id, shown, wait)


@version_router.post("/{version}/activate")
async def activate_version(
    adapter: str, version: str, owned: OwnedSession, trail: Trail, if_match: IfMatch = None
) -> VersionView:
    return VersionView.of(
        await lifecycle.activate_version(
            owned.session, owned.tenant_id, adapter, version, trail, if_match=if_match
        )
    )


@version_router.post("/{version}/deprecate")
async def deprecate_version(
    adapter: str,
    version: str,
    owned: OwnedSession,
    trail: Trail,
    body: DeprecatePost | None = None,
    if_match: IfMatch = None,
) -> VersionView:
    day = None if body is None else body.date
    return VersionView.of(
        await lifecycle.deprecate_version(
            owned.session, owned.tenant_id, adapter, version, day, trail, if_match=if_match
        )
    )


@version_router.post("/{version}/archive")
async def archive_version(
    adapter: str, version: str, owned: OwnedSession, trail: Trail, if_match: IfMatch = None
) -> VersionView:
    return VersionView.of(
        await lifecycle.archive_version(
            owned.session, owned.tenant_id, adapter, version, trail, if_match=if_match
        )
    )


@version_router.post("/{version}/restore")
async def restore_version(
    adapter: str,
    version: str,
    owned: OwnedSession,
    context: Context,
    trail: Trail,
    if_match: IfMatch = None,
) -> VersionView:
    return VersionView.of(
        await lifecycle.restore_version(
            owned.session,
            owned.tenant_id,
            adapter,
            version,
            context.store,
            trail,
            if_match=if_match,
        )
    )


@version_router.delete("/{version}")
async def remove_version(
    adapter: str,
    version: str,
    how: How,
    owned: OwnedSession,
    context: Context,
    trail: Trail,
    if_match: IfMatch = None,
) -> Deleted:
    """Until its bytes go it may be restored."""
    deleted = await delete_version(
        owned.session,
        owned.tenant_id,
        adapter,
        version,
        how,
        trail,
        retained_s=DAY_S * context.settings.adapter_retention_days,
        if_match=if_match,
    )
    return Deleted(id=deleted.id, object="adapter.version")
