"""How a tenant's adapters and versions are made and found.

Knows nothing of HTTP, and not of who asks: operators and tenants get the same functions. The
session is in the tenant's scope. Invariants: what another tenant owns is not found; every change is
in the tenant's audit log; whoever changes an adapter's versions or aliases has locked it.
"""

from __future__ import annotations

import re

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.names import is_adapter_name
from app.adapters.repository import AdapterRepository
from app.adapters.schemas import AdapterCreate, AdapterPatch, AdapterView, VersionView
from app.adapters.versions_repository import VersionRepository
from app.audit.trail import AuditTrail
from app.errors import ConflictError, NotFoundError, UnprocessableError
from app.etags import check_etag
from app.ids import new_id
from app.tables import Adapter, AdapterVersion
from app.uploads.quotas import Quotas
from lora.base_spec import BaseSpec

_ADAPTER_ID = re.compile(r"adp_[0-9a-z]{26}")
_VERSION_ID = re.compile(r"ver_[0-9a-z]{26}")
_VERSION_NUMBER = re.compile(r"v([1-9][0-9]{0,8})")


async def create_adapter(
    session: AsyncSession, tenant_id: str, body: AdapterCreate, base: BaseSpec, trail: AuditTrail
) -> Adapter:
    """Raises UnprocessableError (`name_invalid`, `base_model_mismatch`), ConflictError, or
    QuotaExceededError.
    """
    if not is_adapter_name(body.name) or _ADAPTER_ID.fullmatch(body.name):
        raise UnprocessableError(
            "An adapter's name is 1 to 63 characters of a-z, 0-9, '.', '_' and '-', begins with a "
            "letter or digit, and is neither 'base' nor 'latest'.",
            code="name_invalid",
            param="name",
        )
    if body.base_model not in (None, base.model_id):
        raise UnprocessableError(
            f"This server's base model is '{base.model_id}'.",
            code="base_model_mismatch",
            param="base_model",
        )
    adapter = None
    if body.name != base.model_id:
        adapter = await AdapterRepository(session, tenant_id).add(
            new_id("adp"), body.name, base.model_id, body.description, body.metadata
        )
    if adapter is None:
        raise ConflictError(f"The name '{body.name}' is taken.", code="name_conflict", param="name")
    await Quotas(session, tenant_id).check_adapters()
    after = AdapterView.of(adapter, {})
    await trail.record(session, tenant_id, "adapter.created", adapter.id, after=after)
    return adapter


async def change_adapter(
    session: AsyncSession,
    tenant_id: str,
    reference: str,
    patch: AdapterPatch,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> AdapterView:
    """What its owner says of it. Raises NotFoundError, and as `check_etag`."""
    adapter = await lock_adapter(session, tenant_id, reference)
    aliases = await AdapterRepository(session, tenant_id).aliases_of([adapter.id])
    before = AdapterView.of(adapter, aliases[adapter.id])
    check_etag(before.etag, if_match)
    sent = patch.model_fields_set
    if "description" in sent:
        adapter.description = patch.description
    if "metadata" in sent:
        adapter.labels = patch.metadata
    await session.flush()
    after = AdapterView.of(adapter, aliases[adapter.id])
    await trail.record(
        session, tenant_id, "adapter.changed", adapter.id, before=before, after=after
    )
    return after


async def find_adapter(session: AsyncSession, tenant_id: str, reference: str) -> Adapter:
    """An adapter by id or name. Raises NotFoundError."""
    adapters = AdapterRepository(session, tenant_id)
    adapter = None
    if _ADAPTER_ID.fullmatch(reference):
        adapter = await adapters.get_by_id(reference)
    elif is_adapter_name(reference):
        adapter = await adapters.get_by_name(reference)
    if adapter is None:
        raise NotFoundError("No such adapter.", param="adapter")
    return adapter


async def find_version(
    session: AsyncSession, tenant_id: str, adapter: Adapter, reference: str
) -> AdapterVersion:
    """A version by `v3` or by its id. Raises NotFoundError."""
    versions = VersionRepository(session, tenant_id)
    version = None
    if match := _VERSION_NUMBER.fullmatch(reference):
        version = await versions.get_by_number(adapter.id, int(match[1]))
    elif _VERSION_ID.fullmatch(reference):
        version = await versions.get_by_id(adapter.id, reference)
    if version is None:
        raise NotFoundError("No such version.", param="version")
    return version


async def find_version_to_change(
    session: AsyncSession, adapter: Adapter, reference: str, if_match: str | None
) -> AdapterVersion:
    """A version of a locked adapter. Raises NotFoundError, and as `check_etag`."""
    version = await find_version(session, adapter.tenant_id, adapter, reference)
    if if_match is not None:
        # A worker that erases it holds its row, and not its adapter's.
        version = await VersionRepository(session, adapter.tenant_id).lock(version.id)
        check_etag(VersionView.of(version).etag, if_match)
    return version


async def lock_adapter(session: AsyncSession, tenant_id: str, reference: str) -> Adapter:
    """The adapter, so that changes to its versions and aliases come one after another.

    Raises NotFoundError.
    """
    found = await find_adapter(session, tenant_id, reference)
    adapter = await AdapterRepository(session, tenant_id).lock(found.id)
    if adapter is None:  # deleted while we waited for the lock
        raise NotFoundError("No such adapter.", param="adapter")
    return adapter
