"""Uploads in parts over REST, for operators and, at `/v1/adapters`, for `adapters:write`.

Knows no rules and no SQL. Invariant: both routers call the same functions, with the tenant that
the router's policy established.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from app.adapters.schemas import VersionView
from app.adapters.service import find_adapter
from app.adapters.submission import Told
from app.adapters.tenancy import (
    Owned,
    OwnedSession,
    TenantId,
    operator_for_tenant,
    tenant_for_itself,
)
from app.adapters.verified import Wait, wait_until_verified
from app.audit.trail import Trail
from app.context import Context
from app.etags import IfMatch
from app.idempotency.once import Once
from app.pages import Page, Paging
from app.uploads import service
from app.uploads.completing import complete_upload
from app.uploads.receiving import receive_part
from app.uploads.repository import UploadRepository
from app.uploads.schemas import PartReceived, UploadCreate, UploadView
from app.uploads.tables import Upload

MAX_PART_NUMBER = 1 << 20

PartNumber = Annotated[int, Path(ge=1, le=MAX_PART_NUMBER)]

router = APIRouter(prefix="/adapters/{adapter}/uploads")


@router.post("", status_code=201)
async def create_upload(
    adapter: str,
    body: UploadCreate,
    request: Request,
    owned: OwnedSession,
    context: Context,
    trail: Trail,
    once: Once,
) -> UploadView:
    upload = await service.create_upload(
        owned.session, owned.tenant_id, adapter, body, context.settings, trail
    )
    return await once.keep(UploadView.of(upload, [], _url(request, upload)))


@router.get("")
async def list_uploads(
    adapter: str, request: Request, owned: OwnedSession, paging: Paging
) -> Page[UploadView]:
    row = await find_adapter(owned.session, owned.tenant_id, adapter)
    uploads = UploadRepository(owned.session, owned.tenant_id)
    rows = await uploads.list_page(row.id, paging)
    parts = await uploads.parts_of([upload.id for upload in rows])
    return paging.page(
        rows, lambda upload: UploadView.of(upload, parts[upload.id], _url(request, upload))
    )


@router.get("/{upload}")
async def get_upload(
    adapter: str, upload: str, request: Request, owned: OwnedSession
) -> UploadView:
    row = await service.find_upload(owned.session, owned.tenant_id, adapter, upload)
    return await _shown(owned, row, request)


@router.put("/{upload}/files/{path}/parts/{number}")
async def put_part(
    adapter: str,
    upload: str,
    path: str,
    number: PartNumber,
    request: Request,
    tenant_id: TenantId,
    context: Context,
) -> PartReceived:
    part = await receive_part(context, tenant_id, adapter, upload, path, number, request)
    return PartReceived.of(part)


@router.post("/{upload}/complete", status_code=202)
async def complete(
    adapter: str,
    upload: str,
    response: Response,
    tenant_id: TenantId,
    context: Context,
    trail: Trail,
    terms: Told,
    activate: bool = True,
    wait: Wait = 0,
    if_match: IfMatch = None,
) -> VersionView:
    """202 with the new version; 200 with the same one for each later call.

    `wait`: so many seconds for its check to be done. `strict=true`: what is otherwise a warning
    refuses it. `activate=false`: once it has passed it waits, as `validated`, to be activated.
    """
    version, is_new = await complete_upload(
        context, tenant_id, adapter, upload, trail, terms, activates=activate, if_match=if_match
    )
    response.status_code = 202 if is_new else 200
    return await wait_until_verified(context, tenant_id, VersionView.of(version), wait)


@router.post("/{upload}/cancel")
async def cancel(
    adapter: str,
    upload: str,
    request: Request,
    owned: OwnedSession,
    trail: Trail,
    if_match: IfMatch = None,
) -> UploadView:
    row = await service.cancel_upload(
        owned.session, owned.tenant_id, adapter, upload, trail, if_match=if_match
    )
    return await _shown(owned, row, request)


async def _shown(owned: Owned, upload: Upload, request: Request) -> UploadView:
    parts = await UploadRepository(owned.session, owned.tenant_id).parts_of([upload.id])
    return UploadView.of(upload, parts[upload.id], _url(request, upload))


def _url(request: Request, upload: Upload) -> str:
    """The upload's path, as this request would name it."""
    collection = request.url.path.partition("/uploads")[0]
    return f"{collection}/uploads/{upload.id}"


admin_router = APIRouter(prefix="/tenants/{tenant}", dependencies=[Depends(operator_for_tenant)])
tenant_router = APIRouter(dependencies=[Depends(tenant_for_itself)])
for _router in (admin_router, tenant_router):
    _router.include_router(router)
