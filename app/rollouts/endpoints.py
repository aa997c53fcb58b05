"""Rollouts of an adapter over REST: start, look at, pause, resume, promote, cancel, preview.

Knows no rules and no SQL. Invariant: no registry connection is held while golden prompts are looked
at, or samples read.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from app.adapters.service import find_adapter
from app.adapters.tenancy import OwnedSession, TenantId
from app.audit.trail import Trail
from app.completions.trial import trials_of
from app.context import Context
from app.db import tenant_scope
from app.errors import UnavailableError
from app.etags import IfMatch
from app.idempotency.once import Idempotency, OnceReceived
from app.pages import Page, Paging
from app.rollouts import service
from app.rollouts.decision import decide
from app.rollouts.golden_intake import GoldenIntake, check_prompts
from app.rollouts.golden_own import with_own_prompts
from app.rollouts.repository import RolloutRepository
from app.rollouts.schemas import PreviewView, RolloutCreate, RolloutView
from engine.transport.errors import QueueUnavailableError

rollout_router = APIRouter(prefix="/adapters/{adapter}/rollouts")


@rollout_router.post("", status_code=201)
async def start_rollout(
    adapter: str,
    body: RolloutCreate,
    request: Request,
    tenant_id: TenantId,
    context: Context,
    trail: Trail,
    asked: OnceReceived,
) -> RolloutView:
    body = await with_own_prompts(context, tenant_id, adapter, body)
    await check_prompts(trials_of(context), body.golden)
    golden = GoldenIntake.of(context)
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        once = Idempotency()
        if asked is not None:
            once = await asked.enter(session, await request.body())
        rollout = await service.start_rollout(session, tenant_id, adapter, body, golden, trail)
        view = await once.keep(RolloutView.of(rollout))
        await session.commit()
    return view


@rollout_router.get("")
async def list_rollouts(adapter: str, owned: OwnedSession, paging: Paging) -> Page[RolloutView]:
    row = await find_adapter(owned.session, owned.tenant_id, adapter)
    rollouts = RolloutRepository(owned.session, owned.tenant_id)
    rows = await rollouts.list_page(row.id, paging)
    return paging.page(rows, RolloutView.of)


@rollout_router.get("/{rollout}")
async def get_rollout(adapter: str, rollout: str, owned: OwnedSession) -> RolloutView:
    return RolloutView.of(
        await service.find_rollout(owned.session, owned.tenant_id, adapter, rollout)
    )


@rollout_router.get("/{rollout}/preview")
async def preview_rollout(
    adapter: str, rollout: str, tenant_id: TenantId, context: Context
) -> PreviewView:
    """What it would do now, and why."""
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        found = await service.find_rollout(session, tenant_id, adapter, rollout)
    try:
        samples = await context.samples.read(found.adapter_id, found.alias)
    except QueueUnavailableError as error:
        raise UnavailableError(internal=str(error)) from error
    decision = await asyncio.to_thread(decide, found, samples, context.now())
    return PreviewView.of(found, decision)


@rollout_router.post("/{rollout}/pause")
async def pause_rollout(
    adapter: str, rollout: str, owned: OwnedSession, trail: Trail, if_match: IfMatch = None
) -> RolloutView:
    return RolloutView.of(
        await service.pause_rollout(
            owned.session, owned.tenant_id, adapter, rollout, trail, if_match=if_match
        )
    )


@rollout_router.post("/{rollout}/resume")
async def resume_rollout(
    adapter: str,
    rollout: str,
    owned: OwnedSession,
    context: Context,
    trail: Trail,
    if_match: IfMatch = None,
) -> RolloutView:
    golden = GoldenIntake.of(context)
    return RolloutView.of(
        await service.resume_rollout(
            owned.session, owned.tenant_id, adapter, rollout, golden, trail, if_match=if_match
        )
    )


@rollout_router.post("/{rollout}/promote")
async def promote_rollout(
    adapter: str, rollout: str, owned: OwnedSession, trail: Trail, if_match: IfMatch = None
) -> RolloutView:
    return RolloutView.of(
        await service.promote_rollout(
            owned.session, owned.tenant_id, adapter, rollout, trail, if_match=if_match
        )
    )


@rollout_router.post("/{rollout}/cancel")
async def cancel_rollout(
    adapter: str, rollout: str, owned: OwnedSession, trail: Trail, if_match: IfMatch = None
) -> RolloutView:
    return RolloutView.of(
        await service.cancel_rollout(
            owned.session, owned.tenant_id, adapter, rollout, trail, if_match=if_match
        )
    )
