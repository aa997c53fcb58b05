"""`/files` under `/v1` and `/t/{tenant}/v1`: OpenAI's files, for batches and for keeping.

Knows no rules and no SQL. Invariant: no connection to the registry is held while bytes come or go.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse

from app.auth import Principal, require_inference
from app.bodies import Deleted
from app.context import Context
from app.db import tenant_scope
from app.etags import IfMatch
from app.files import service
from app.files.repository import FileRepository
from app.files.schemas import FileView
from app.files.vault import FileVault, SealedBody
from app.idempotency.once import OnceReceived
from app.pages import Order, Page, PageQuery
from app.session import RequestSession

MAX_PAGE = 10_000  # OpenAI's

router = APIRouter(prefix="/files")

InferencePrincipal = Annotated[Principal, Depends(require_inference)]
After = Annotated[str | None, Query(pattern=r"^fil_[0-9a-z]{26}$")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.post("")
async def create_file(
    request: Request, principal: InferencePrincipal, context: Context, once: OnceReceived
) -> FileView:
    return FileView.of(await service.upload_file(context, principal, request, once))


@router.get("")
async def list_files(
    principal: InferencePrincipal,
    session: RequestSession,
    after: After = None,
    limit: Limit = 1000,
    order: Order = "desc",
    purpose: Annotated[str | None, Query(max_length=64)] = None,
) -> Page[FileView]:
    await tenant_scope(session, principal.tenant_id)
    page = PageQuery(after, limit, order)
    rows = await FileRepository(session, principal.tenant_id).list_page(page, purpose=purpose)
    return page.page(rows, FileView.of)


@router.get("/{file}")
async def get_file(
    file: str, principal: InferencePrincipal, session: RequestSession, context: Context
) -> FileView:
    await tenant_scope(session, principal.tenant_id)
    found = await service.find_file(session, principal.tenant_id, file, context.now())
    return FileView.of(found)


@router.get("/{file}/content")
async def get_file_content(
    file: str, principal: InferencePrincipal, context: Context
) -> StreamingResponse:
    vault = service.vault_of(context)
    async with context.database.session() as session:
        await tenant_scope(session, principal.tenant_id)
        found = await service.find_file(session, principal.tenant_id, file, context.now())
    body = service.body_of(found)
    headers = {
        "content-length": str(body.num_bytes),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(found.filename, safe='')}",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(
        _content(vault, body), media_type="application/octet-stream", headers=headers
    )


@router.delete("/{file}")
async def delete_file(
    file: str,
    principal: InferencePrincipal,
    session: RequestSession,
    context: Context,
    if_match: IfMatch = None,
) -> Deleted:
    await tenant_scope(session, principal.tenant_id)
    deleted = await service.delete_file(
        session, principal.tenant_id, file, context.now(), if_match=if_match
    )
    return Deleted(id=deleted.id, object="file")


async def _content(vault: FileVault, body: SealedBody) -> AsyncGenerator[bytes, None]:
    async with aclosing(vault.read(body)) as chunks:
        async for chunk in chunks:
            yield chunk
