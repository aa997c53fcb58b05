"""Aliases of an adapter over REST: read, move, look back, roll back, delete.

Knows no rules and no SQL.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BeforeValidator

from app.adapters import aliases, service
from app.adapters.alias_repository import AliasRepository
from app.adapters.alias_schemas import (
    AliasChangeView,
    AliasPut,
    AliasView,
    RollbackPost,
    ShadowResults,
)
from app.adapters.aliases import NamedAlias
from app.adapters.residency import have_ready
from app.adapters.tenancy import OwnedSession, TenantId
from app.audit.trail import Trail
from app.bodies import Deleted
from app.context import Context
from app.db import tenant_scope
from app.errors import UnavailableError
from app.etags import IfMatch
from app.pages import LatestFirst, Page
from engine.transport.errors import QueueUnavailableError

MAX_WAIT_S = 60.0
DEFAULT_WAIT_S = 30.0


def _seconds(value: Any) -> Any:
    """`true` stands for so many seconds as are mostly enough."""
    return {"true": DEFAULT_WAIT_S, "false": 0.0}.get(value, value)


Wait = Annotated[float, BeforeValidator(_seconds), Query(ge=0, le=MAX_WAIT_S)]


def named_alias(
    adapter: str, alias: str, tenant_id: TenantId, if_match: IfMatch = None
) -> NamedAlias:
    return NamedAlias(tenant_id, adapter, alias, if_match)


Named = Annotated[NamedAlias, Depends(named_alias)]

alias_router = APIRouter(prefix="/adapters/{adapter}/aliases")


@alias_router.get("/{alias}")
async def get_alias(adapter: str, alias: str, owned: OwnedSession) -> AliasView:
    named = NamedAlias(owned.tenant_id, adapter, alias)
    return AliasView.of(await aliases.find_alias(owned.session, named))


@alias_router.put("/{alias}")
async def put_alias(
    named: Named, body: AliasPut, context: Context, trail: Trail, wait: Wait = 0
) -> AliasView:
    """`wait`: so many seconds, or `true`, for engines to have the targets before it moves.

    Without it a version that no alias means yet must be at an engine already.
    """
    async with context.database.session() as session:
        await tenant_scope(session, named.tenant_id)
        newcomers = await aliases.list_newcomers(session, named, body, trail)
    needed = [each.version for each in body.weighted] if wait > 0 else newcomers
    await have_ready(context, named.tenant_id, named.adapter, needed, trail, wait_s=wait)
    async with context.database.session() as session:
        await tenant_scope(session, named.tenant_id)
        pointing = await aliases.put_alias(session, named, body, trail)
        await session.commit()
    return AliasView.of(pointing)


@alias_router.get("/{alias}/history")
async def list_changes(
    adapter: str, alias: str, owned: OwnedSession, paging: LatestFirst
) -> Page[AliasChangeView]:
    row = await service.find_adapter(owned.session, owned.tenant_id, adapter)
    changes = await AliasRepository(owned.session, owned.tenant_id).list_changes(
        row.id, alias, paging
    )
    return paging.page(changes, AliasChangeView.of)


@alias_router.post("/{alias}/rollback")
async def roll_back(
    named: Named, owned: OwnedSession, trail: Trail, body: RollbackPost | None = None
) -> AliasView:
    to = None if body is None else body.to
    return AliasView.of(await aliases.roll_back(owned.session, named, to, trail))


@alias_router.get("/{alias}/shadow")
async def get_shadow(
    adapter: str, alias: str, owned: OwnedSession, context: Context
) -> ShadowResults:
    """How far answers and their shadows agreed, of the version that is the shadow now."""
    named = NamedAlias(owned.tenant_id, adapter, alias)
    pointing = await aliases.find_alias(owned.session, named)
    shadow_id = None if pointing.shadow is None else pointing.shadow.version_id
    try:
        samples = await context.samples.read_shadows(pointing.adapter_id, alias)
    except QueueUnavailableError as error:
        raise UnavailableError(internal=str(error)) from error
    return ShadowResults.of(alias, shadow_id, samples)


@alias_router.delete("/{alias}")
async def delete_alias(named: Named, owned: OwnedSession, trail: Trail) -> Deleted:
    await aliases.delete_alias(owned.session, named, trail)
    return Deleted(id=named.alias, object="adapter.alias")
