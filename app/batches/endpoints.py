"""`/batches` under `/v1` and `/t/{tenant}/v1`: OpenAI's batches. Knows no rules and no SQL."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.auth import Principal, require_inference
from app.batches import service
from app.batches.repository import BatchRepository
from app.batches.schemas import BatchCreate, BatchView
from app.context import Context
from app.db import tenant_scope
from app.etags import IfMatch
from app.files.service import vault_of
from app.idempotency.once import Once
from app.pages import MAX_PAGE, Order, Page, PageQuery
from app.session import RequestSession

router = APIRouter(prefix="/batches")

InferencePrincipal = Annotated[Principal, Depends(require_inference)]
After = Annotated[str | None, Query(pattern=r"^bat_[0-9a-z]{26}$")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.post("")
async def create_batch(
    body: BatchCreate,
    principal: InferencePrincipal,
    session: RequestSession,
    context: Context,
    once: Once,
) -> BatchView:
    vault = vault_of(context)
    batch = await service.create_batch(session, vault, principal, body, context.now())
    return await once.keep(BatchView.of(batch))


@router.get("")
async def list_batches(
    principal: InferencePrincipal,
    session: RequestSession,
    after: After = None,
    limit: Limit = 20,
    order: Order = "desc",
) -> Page[BatchView]:
    await tenant_scope(session, principal.tenant_id)
    page = PageQuery(after, limit, order)
    rows = await BatchRepository(session, principal.tenant_id).list_page(page)
    return page.page(rows, BatchView.of)


@router.get("/{batch}")
async def get_batch(
    batch: str, principal: InferencePrincipal, session: RequestSession
) -> BatchView:
    await tenant_scope(session, principal.tenant_id)
    return BatchView.of(await service.find_batch(session, principal.tenant_id, batch))


@router.post("/{batch}/cancel")
async def cancel_batch(
    batch: str,
    principal: InferencePrincipal,
    session: RequestSession,
    context: Context,
    if_match: IfMatch = None,
) -> BatchView:
    await tenant_scope(session, principal.tenant_id)
    cancelled = await service.cancel_batch(
        session, principal.tenant_id, batch, context.now(), if_match=if_match
    )
    return BatchView.of(cancelled)
