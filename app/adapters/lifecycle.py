"""What may become of a version: activated, deprecated until a day, archived, restored.

Knows nothing of HTTP, and not of who asks. The session is in the tenant's scope. Invariants: states
change along the table of `app.adapters.states` alone, each change in the audit log; a version that
an alias may mean stays nameable; a call that changes nothing is no error and leaves no event; one
that was meant for another state raises as `check_etag`.
"""

from __future__ import annotations

import asyncio
from datetime import date, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.alias_repository import AliasRepository, target_of
from app.adapters.aliases import move_alias
from app.adapters.names import DEFAULT_ALIAS
from app.adapters.repository import AdapterRepository
from app.adapters.schemas import describe_version
from app.adapters.service import find_version_to_change, lock_adapter
from app.adapters.states import ACTIVE, ARCHIVED, DELETING, DEPRECATED, change_state
from app.adapters.storage_errors import storage_errors
from app.adapters.versions_repository import VersionRepository
from app.audit.trail import AuditTrail
from app.errors import ConflictError, UnprocessableError
from app.tables import AdapterVersion
from lora.store import AdapterStore


async def activate_version(
    session: AsyncSession,
    tenant_id: str,
    adapter: str,
    reference: str,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> AdapterVersion:
    """Let it be named; a deprecated one loses its date. Raises ConflictError as `change_state`."""
    version = await _locked(session, tenant_id, adapter, reference, if_match)
    if version.state == ACTIVE:
        return version
    if version.state == DELETING:
        raise ConflictError(
            f"v{version.number} is being deleted: restore it.",
            code="version_state_conflict",
            param="version",
            details={"state": version.state},
        )
    before = describe_version(version)
    action = await make_active(session, version, trail.at, trail)
    return await _record(session, action, before, version, trail)


async def deprecate_version(
    session: AsyncSession,
    tenant_id: str,
    adapter: str,
    reference: str,
    shutdown_on: date | None,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> AdapterVersion:
    """Announce its end: it is served until `shutdown_on` (UTC), and without one for as long as it
    is not archived. Another call sets another day.

    Raises UnprocessableError (`date_invalid`) for a day that is not to come.
    """
    version = await _locked(session, tenant_id, adapter, reference, if_match)
    if shutdown_on is not None and shutdown_on <= trail.at.date():
        raise UnprocessableError(
            "The day on which a version ceases to be served is to come.",
            code="date_invalid",
            param="date",
        )
    if (version.state, version.shutdown_on) == (DEPRECATED, shutdown_on):
        return version
    before = describe_version(version)
    action = "version.deprecated"
    if version.state != DEPRECATED:
        action = change_state(version, DEPRECATED)
    version.shutdown_on = shutdown_on
    return await _record(session, action, before, version, trail)


async def archive_version(
    session: AsyncSession,
    tenant_id: str,
    adapter: str,
    reference: str,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> AdapterVersion:
    """Serve it no more, and keep its bytes. Raises ConflictError (`alias_in_use`)."""
    version = await _locked(session, tenant_id, adapter, reference, if_match)
    if version.state == ARCHIVED:
        return version
    before = describe_version(version)
    action = change_state(version, ARCHIVED)
    await refuse_aliased(session, version)
    return await _record(session, action, before, version, trail)


async def restore_version(
    session: AsyncSession,
    tenant_id: str,
    adapter: str,
    reference: str,
    store: AdapterStore,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> AdapterVersion:
    """Let an archived one be named again, or one that was deleted and whose bytes are still there.

    Raises ConflictError: `version_state_conflict` where it is neither, or never was active;
    `version_erased` where its bytes have gone; `version_superseded` where they were sent again.
    """
    found = await _locked(session, tenant_id, adapter, reference, if_match)
    # A worker that erases it holds its row: whoever comes second finds what the first has done.
    version = await VersionRepository(session, tenant_id).lock(found.id)
    if version.state == DELETING and version.activated_at is not None:
        await _refuse_gone(session, version, store)
    elif version.state != ARCHIVED:
        raise ConflictError(
            f"v{version.number} is {version.state}, and nothing to be restored.",
            code="version_state_conflict",
            param="version",
            details={"state": version.state},
        )
    before = describe_version(version)
    action = await make_active(session, version, trail.at, trail)
    return await _record(session, action, before, version, trail)


async def make_active(
    session: AsyncSession, version: AdapterVersion, now: datetime, trail: AuditTrail | None
) -> str:
    """Along an edge to `active`, whose action is returned; an adapter's first takes `prod`.

    The adapter is locked. No later one moves `prod`. `trail`: where that move is written down.
    """
    is_first = not await VersionRepository(session, version.tenant_id).was_ever_active(
        version.adapter_id
    )
    action = change_state(version, ACTIVE)
    version.shutdown_on = None
    version.activated_at = version.activated_at or now
    await session.flush()
    if is_first:
        adapter = await AdapterRepository(session, version.tenant_id).lock(version.adapter_id)
        assert adapter is not None
        await move_alias(
            session, adapter, DEFAULT_ALIAS, [target_of(version)], None, trail, by_system=True
        )
    return action


async def refuse_aliased(session: AsyncSession, version: AdapterVersion) -> None:
    """Raises ConflictError (`alias_in_use`), naming the aliases that may mean this version."""
    aliases = await AliasRepository(session, version.tenant_id).list_on(version.id)
    if aliases:
        raise ConflictError(
            f"Aliases point at v{version.number}: {', '.join(aliases)}. Move or delete them first.",
            code="alias_in_use",
            param="version",
            details={"aliases": aliases},
        )


async def _refuse_gone(session: AsyncSession, version: AdapterVersion, store: AdapterStore) -> None:
    """Raises ConflictError where a deleted version is not what it was."""
    with storage_errors():
        is_there = await asyncio.to_thread(store.contains, version.locator)
    if not is_there:
        raise ConflictError(
            f"The bytes of v{version.number} have gone.", code="version_erased", param="version"
        )
    versions = VersionRepository(session, version.tenant_id)
    other = await versions.get_live_by_digest(version.adapter_id, version.digest)
    if other is not None:
        raise ConflictError(
            f"The same bytes are v{other.number} by now.",
            code="version_superseded",
            param="version",
            details={"version": f"v{other.number}"},
        )


async def _locked(
    session: AsyncSession,
    tenant_id: str,
    adapter_reference: str,
    reference: str,
    if_match: str | None,
) -> AdapterVersion:
    adapter = await lock_adapter(session, tenant_id, adapter_reference)
    return await find_version_to_change(session, adapter, reference, if_match)


async def _record(
    session: AsyncSession,
    action: str,
    before: dict[str, object],
    version: AdapterVersion,
    trail: AuditTrail,
) -> AdapterVersion:
    await session.flush()
    await trail.record(
        session,
        version.tenant_id,
        action,
        version.id,
        before=before,
        after=describe_version(version),
    )
    return version
