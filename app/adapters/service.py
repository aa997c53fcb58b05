"""What may be done with a tenant's adapters, versions and aliases.

Knows nothing of HTTP, and not of who asks: operators and tenants get the same functions. The
session is in the tenant's scope. Invariants: what another tenant owns is not found; an alias
points at an active version of its own adapter; bytes are removed only by a worker, some time after
the deletion, and only when no version needs them; every change is in the tenant's audit log.
"""

from __future__ import annotations

import re

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.jobs_repository import REMOVAL_DELAY_S, add_job
from app.adapters.names import is_adapter_name, is_alias
from app.adapters.repository import AdapterRepository
from app.adapters.schemas import AdapterCreate, AdapterView, describe_version
from app.adapters.versions_repository import VersionRepository
from app.audit.trail import AuditTrail
from app.errors import ConflictError, NotFoundError, UnprocessableError, shorten
from app.ids import new_id
from app.tables import Adapter, AdapterVersion
from lora.base_spec import BaseSpec

_ADAPTER_ID = re.compile(r"adp_[0-9a-z]{26}")
_VERSION_ID = re.compile(r"ver_[0-9a-z]{26}")
_VERSION_NUMBER = re.compile(r"v([1-9][0-9]{0,8})")


async def create_adapter(
    session: AsyncSession, tenant_id: str, body: AdapterCreate, base: BaseSpec, trail: AuditTrail
) -> Adapter:
    """Raises UnprocessableError (`name_invalid`, `base_model_mismatch`) or ConflictError."""
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
            new_id("adp"), body.name, base.model_id, body.description
        )
    if adapter is None:
        raise ConflictError(f"The name '{body.name}' is taken.", code="name_conflict", param="name")
    after = AdapterView.of(adapter, {})
    await trail.record(session, tenant_id, "adapter.created", adapter.id, after=after)
    return adapter


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


async def delete_adapter(
    session: AsyncSession, tenant_id: str, reference: str, trail: AuditTrail
) -> Adapter:
    """Forget an adapter with its versions and aliases; a worker removes the bytes."""
    adapter = await _locked(session, tenant_id, reference)
    adapters = AdapterRepository(session, tenant_id)
    aliases = await adapters.aliases_of([adapter.id])
    before = AdapterView.of(adapter, aliases[adapter.id])
    for locator in await adapters.locators_of(adapter.id):
        await add_job(session, tenant_id, "remove", locator, delay_s=REMOVAL_DELAY_S)
    await adapters.remove(adapter.id)
    await trail.record(session, tenant_id, "adapter.deleted", adapter.id, before=before)
    return adapter


async def delete_version(
    session: AsyncSession,
    tenant_id: str,
    adapter_reference: str,
    reference: str,
    trail: AuditTrail,
) -> AdapterVersion:
    """Stop serving a version for good. Raises ConflictError while an alias points at it."""
    adapter = await _locked(session, tenant_id, adapter_reference)
    version = await find_version(session, tenant_id, adapter, reference)
    if version.state == "deleted":
        return version
    aliases = await AdapterRepository(session, tenant_id).aliases_on(version.id)
    if aliases:
        raise ConflictError(
            f"Aliases point at v{version.number}: {', '.join(aliases)}. Move or delete them first.",
            code="alias_in_use",
            param="version",
            details={"aliases": aliases},
        )
    before = describe_version(version)
    version.state = "deleted"
    await add_job(session, tenant_id, "remove", version.locator, delay_s=REMOVAL_DELAY_S)
    await trail.record(session, tenant_id, "version.deleted", version.id, before=before)
    return version


async def put_alias(
    session: AsyncSession,
    tenant_id: str,
    reference: str,
    alias: str,
    version_reference: str,
    trail: AuditTrail,
) -> AdapterVersion:
    """Point an alias at an active version, atomically for every later request."""
    if not is_alias(alias):
        raise UnprocessableError(
            f"'{shorten(alias)}' cannot be an alias: it follows the rules of adapters' names, and "
            "is neither 'sha256' nor 'v' and digits.",
            code="name_invalid",
            param="alias",
        )
    adapter = await _locked(session, tenant_id, reference)
    version = await find_version(session, tenant_id, adapter, version_reference)
    if version.state != "active":
        raise ConflictError(
            f"v{version.number} is {version.state}; an alias needs an active version.",
            code="version_not_active",
            param="version",
        )
    adapters = AdapterRepository(session, tenant_id)
    before = (await adapters.aliases_of([adapter.id]))[adapter.id].get(alias)
    await adapters.set_alias(version, alias)
    await trail.record(
        session,
        tenant_id,
        "alias.moved",
        adapter.id,
        before=None if before is None else _alias(alias, before),
        after=_alias(alias, version.number),
    )
    return version


async def delete_alias(
    session: AsyncSession, tenant_id: str, reference: str, alias: str, trail: AuditTrail
) -> None:
    adapter = await _locked(session, tenant_id, reference)
    adapters = AdapterRepository(session, tenant_id)
    before = (await adapters.aliases_of([adapter.id]))[adapter.id].get(alias)
    if before is None:
        raise NotFoundError("No such alias.", param="alias")
    await adapters.remove_alias(adapter.id, alias)
    await trail.record(
        session, tenant_id, "alias.deleted", adapter.id, before=_alias(alias, before)
    )


def _alias(alias: str, number: int) -> dict[str, str]:
    return {"alias": alias, "version": f"v{number}"}


async def _locked(session: AsyncSession, tenant_id: str, reference: str) -> Adapter:
    """The adapter, so that changes to its versions and aliases come one after another."""
    found = await find_adapter(session, tenant_id, reference)
    adapter = await AdapterRepository(session, tenant_id).lock(found.id)
    if adapter is None:  # deleted while we waited for the lock
        raise NotFoundError("No such adapter.", param="adapter")
    return adapter
