"""`/admin/v1/audit`: operators read the log of changes, and verify that it is whole.

`{chain}` is a tenant's id or slug, or `fleet`: what concerns no single tenant.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.audit import service
from app.audit.chain import audit_keys
from app.audit.repository import AuditRepository, list_heads
from app.audit.schemas import AuditEventView, HeadList, HeadView, Verification
from app.auth import require_operator
from app.context import Context
from app.db import operator_scope
from app.errors import BadRequestError
from app.pages import MAX_PAGE, Order, Page, PageQuery, Paging
from app.session import RequestSession

router = APIRouter(prefix="/audit", dependencies=[Depends(require_operator)])

Mac = Annotated[str | None, Query(pattern=r"^[0-9a-f]{64}$")]


@router.get("")
async def list_chains(
    session: RequestSession,
    after: Annotated[str | None, Query(pattern=r"^(fleet|ten_[0-9a-z]{26})$")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    order: Order = "asc",
) -> HeadList:
    await operator_scope(session)
    heads = await list_heads(session, PageQuery(after, limit, order))
    shown = [HeadView.of(head) for head in heads[:limit]]
    return HeadList(
        data=shown,
        has_more=len(heads) > limit,
        last_id=shown[-1].tenant_id if shown else None,
    )


@router.get("/{chain}")
async def list_events(chain: str, session: RequestSession, paging: Paging) -> Page[AuditEventView]:
    chain_id = await service.find_chain(session, chain)
    rows = await AuditRepository(session, chain_id).list_page(paging)
    return paging.page(rows, AuditEventView.of)


@router.get("/{chain}/verification")
async def verify(
    chain: str,
    session: RequestSession,
    context: Context,
    kept_seq: Annotated[int | None, Query(ge=1)] = None,
    kept_mac: Mac = None,
) -> Verification:
    if (kept_seq is None) != (kept_mac is None):
        raise BadRequestError("'kept_seq' and 'kept_mac' go together.", param="kept_mac")
    kept = None if kept_seq is None or kept_mac is None else (kept_seq, kept_mac)
    chain_id = await service.find_chain(session, chain)
    keys = audit_keys(context.settings.key_pepper.get_secret_value())
    return Verification.of(chain_id, await service.verify_chain(session, keys, chain_id, kept))
