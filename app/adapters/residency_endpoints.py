"""Operators' levers over REST, and what became of bytes. Knows no rules and no SQL.

Invariant: no registry connection is held while engines are waited for.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from app.adapters.erasure_repository import list_erasures
from app.adapters.probing import probe
from app.adapters.residency import pull_lever, reports_on
from app.adapters.residency_schemas import (
    CommandView,
    ErasureView,
    PinPost,
    PreloadPost,
    ProbePost,
    ProbeView,
    ReplicaView,
    ResidencyView,
)
from app.adapters.tenancy import OwnedSession, TenantId
from app.audit.trail import Trail
from app.context import Context
from app.pages import Page, Paging
from engine.messages import Lever

MAX_WAIT_S = 60.0
DEFAULT_WAIT_S = 10.0

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S)]

residency_router = APIRouter()
VERSION = "/adapters/{adapter}/versions/{version}"


@residency_router.get(f"{VERSION}/residency")
async def get_residency(
    adapter: str, version: str, tenant_id: TenantId, context: Context
) -> ResidencyView:
    found, reports, live = await reports_on(context, tenant_id, adapter, version)
    return ResidencyView(
        version_id=found.id,
        digest=found.digest,
        num_engines=len(live),
        data=[ReplicaView.of(report) for report in reports],
    )


@residency_router.post(f"{VERSION}/preload")
async def preload(
    adapter: str,
    version: str,
    tenant_id: TenantId,
    context: Context,
    trail: Trail,
    body: PreloadPost | None = None,
    wait: Wait = DEFAULT_WAIT_S,
) -> CommandView:
    replicas = None if body is None else body.replicas
    return CommandView.of(
        await pull_lever(
            context,
            tenant_id,
            adapter,
            version,
            Lever.PRELOAD,
            trail,
            replicas=replicas,
            wait_s=wait,
        )
    )


@residency_router.post(f"{VERSION}/pin")
async def pin(
    adapter: str,
    version: str,
    tenant_id: TenantId,
    context: Context,
    trail: Trail,
    body: PinPost | None = None,
    wait: Wait = DEFAULT_WAIT_S,
) -> CommandView:
    asked = body or PinPost()
    return CommandView.of(
        await pull_lever(
            context,
            tenant_id,
            adapter,
            version,
            Lever.PIN,
            trail,
            replicas=asked.replicas,
            until_s=asked.ends_at(context.now().timestamp()),
            wait_s=wait,
        )
    )


@residency_router.post(f"{VERSION}/evict")
async def evict(
    adapter: str,
    version: str,
    tenant_id: TenantId,
    context: Context,
    trail: Trail,
    wait: Wait = DEFAULT_WAIT_S,
) -> CommandView:
    return CommandView.of(
        await pull_lever(context, tenant_id, adapter, version, Lever.EVICT, trail, wait_s=wait)
    )


@residency_router.post(f"{VERSION}/probe")
async def probe_version(
    adapter: str,
    version: str,
    body: ProbePost,
    tenant_id: TenantId,
    context: Context,
    trail: Trail,
) -> ProbeView:
    """What it says to one prompt, before anybody else asks it. Nobody is billed."""
    return ProbeView.of(await probe(context, tenant_id, adapter, version, body.question, trail))


@residency_router.get("/erasures")
async def get_erasures(owned: OwnedSession, paging: Paging) -> Page[ErasureView]:
    rows = await list_erasures(owned.session, owned.tenant_id, paging)
    return paging.page(rows, ErasureView.of)
