"""What may be done with imports, but for running them.

Knows nothing of HTTP. The session is in the tenant's scope. Invariants: what another tenant owns is
not found; a source that no worker would ask is refused at once; a token is stored sealed, and shown
by nothing.
"""

from __future__ import annotations

import re

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.service import find_adapter
from app.audit.trail import AuditTrail
from app.auth import OPERATOR
from app.errors import (
    NO_RETRY,
    ApiError,
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    UnprocessableError,
)
from app.etags import check_etag
from app.ids import new_id
from app.imports.repository import ImportRepository
from app.imports.schemas import ImportCreate, ImportView
from app.imports.sources import AllowList, parse_source
from app.imports.tables import Import
from app.imports.tokens import TokenSealer
from app.settings import Settings
from app.uploads.quotas import Quotas

_IMPORT_ID = re.compile(r"imp_[0-9a-z]{26}")
_TAKES_TOKEN = frozenset({"hf", "https"})


async def create_import(
    session: AsyncSession,
    tenant_id: str,
    adapter_reference: str,
    body: ImportCreate,
    settings: Settings,
    trail: AuditTrail,
) -> Import:
    """Raises 422 `import_source_invalid`, 403 `import_source_not_allowed`,
    `import_credential_not_allowed` or `quota_exceeded`.
    """
    adapter = await find_adapter(session, tenant_id, adapter_reference)
    source = parse_source(body.source)
    if not AllowList.parse(settings.import_allow).allows(source):
        raise ApiError(
            403,
            "import_source_not_allowed",
            "permission_error",
            "Imports from there are not allowed on this server.",
            param="source",
            headers=NO_RETRY,
        )
    if body.credential_ref is not None and trail.actor != OPERATOR:
        raise PermissionDeniedError(
            "The workers' own credentials are the operator's: send a token.",
            code="import_credential_not_allowed",
        )
    has_token = body.token is not None or body.credential_ref is not None
    if has_token and source.scheme not in _TAKES_TOKEN:
        raise UnprocessableError(
            "A bucket is read with the server's own right; it takes no token.",
            code="import_token_unsupported",
            param="token",
        )
    await Quotas(session, tenant_id).take_upload(trail.at, 0)
    job = _new_job(tenant_id, adapter.id, body, settings, trail.actor)
    await ImportRepository(session, tenant_id).add(job)
    view = ImportView.of(job)
    await trail.record(session, tenant_id, "import.created", job.id, after=view)
    return job


def _new_job(
    tenant_id: str,
    adapter_id: str,
    body: ImportCreate,
    settings: Settings,
    actor: str,
) -> Import:
    import_id = new_id("imp")
    job = Import(
        id=import_id,
        tenant_id=tenant_id,
        adapter_id=adapter_id,
        source=body.source,
        sha256=body.sha256,
        credential_ref=body.credential_ref,
        created_by=actor,
        license=body.license,
        strict=body.strict,
        activates=body.activate,
    )
    if body.token is not None:
        sealer = TokenSealer(settings.queue_secret.get_secret_value())
        job.sealed_token = sealer.seal(import_id, body.token.get_secret_value())
    return job


async def find_import(
    session: AsyncSession, tenant_id: str, adapter_reference: str, import_id: str
) -> Import:
    """Raises NotFoundError."""
    adapter = await find_adapter(session, tenant_id, adapter_reference)
    job = None
    if _IMPORT_ID.fullmatch(import_id):
        job = await ImportRepository(session, tenant_id).get(adapter.id, import_id)
    if job is None:
        raise NotFoundError("No such import.", param="import")
    return job


async def cancel_import(
    session: AsyncSession,
    tenant_id: str,
    adapter_reference: str,
    import_id: str,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> Import:
    """Whoever runs it stops at its next heartbeat. A second call changes nothing.

    Raises NotFoundError, ConflictError (`import_ended`), and as `check_etag`.
    """
    found = await find_import(session, tenant_id, adapter_reference, import_id)
    job = await ImportRepository(session, tenant_id).lock(found.id)
    if job is None:
        raise NotFoundError("No such import.", param="import")
    check_etag(ImportView.of(job).etag, if_match)
    if job.state == "cancelled":
        return job
    if job.ended_at is not None:
        raise ConflictError(f"The import has {job.state}.", code="import_ended", param="import")
    before = ImportView.of(job)
    job.state, job.ended_at, job.sealed_token = "cancelled", trail.at, None
    await session.flush()
    await trail.record(
        session, tenant_id, "import.cancelled", job.id, before=before, after=ImportView.of(job)
    )
    return job
