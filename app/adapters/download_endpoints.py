"""A version's report and its files over REST, for operators and for tenants themselves.

Knows no rules and no SQL. Invariant: no connection to the registry is held while bytes go.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request

from app.adapters.download_response import DownloadResponse
from app.adapters.download_schemas import DownloadFile, DownloadView
from app.adapters.downloading import DownloadSlots, KeptFile, find_kept, kept_files
from app.adapters.residency import find_at_tenant
from app.adapters.tenancy import OwnedSession, TenantId
from app.context import Context

download_router = APIRouter(prefix="/adapters/{adapter}/versions/{version}")


@download_router.get("/report")
async def get_report(adapter: str, version: str, owned: OwnedSession) -> dict[str, Any]:
    """What was found in it, as the version itself shows it."""
    found = await find_at_tenant(owned.session, owned.tenant_id, adapter, version)
    return found.report


@download_router.get("/download")
async def get_download(
    adapter: str, version: str, request: Request, tenant_id: TenantId, context: Context
) -> DownloadView:
    """Where each of its files is to be had."""
    async with context.database.session() as session:
        found = await find_at_tenant(session, tenant_id, adapter, version)
    lifetime = timedelta(seconds=context.settings.download_url_s)
    here = request.url.path.removesuffix("/download")
    files, is_signed = [], False
    for kept in kept_files(context.store, found):
        signed = await kept.sign(lifetime) if lifetime else None
        is_signed |= signed is not None
        files.append(
            DownloadFile(
                path=kept.file.name,
                bytes=kept.file.num_bytes,
                sha256=kept.file.sha256,
                url=signed or f"{here}/files/{quote(kept.file.name)}",
            )
        )
    return DownloadView(
        version_id=found.id,
        digest=found.digest,
        files=files,
        expires_at=context.now() + lifetime if is_signed else None,
    )


@download_router.get("/files/{path}")
async def get_file(
    adapter: str, version: str, path: str, tenant_id: TenantId, context: Context
) -> DownloadResponse:
    """One file, byte for byte as it was accepted."""
    async with context.database.session() as session:
        found = await find_at_tenant(session, tenant_id, adapter, version)
    kept = find_kept(context.store, found, path)
    headers = {
        "content-type": "application/octet-stream",
        "content-length": str(kept.file.num_bytes),
        "content-disposition": f'attachment; filename="{kept.file.name}"',
        "x-content-sha256": kept.file.sha256,
        "x-content-type-options": "nosniff",
    }
    return DownloadResponse(
        _pieces(context.downloads, tenant_id, kept),
        headers,
        stall_timeout_s=context.settings.client_stall_timeout_s,
    )


async def _pieces(
    slots: DownloadSlots, tenant_id: str, kept: KeptFile
) -> AsyncGenerator[bytes, None]:
    with slots.hold(tenant_id):
        async with aclosing(kept.pieces()) as pieces:
            async for piece in pieces:
                yield piece
