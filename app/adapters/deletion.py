"""How versions and adapters are deleted: nothing new at once, what runs drained, then every byte.

Knows nothing of HTTP, and not of who asks. The session is in the tenant's scope. Invariants: what
an alias may mean is not deleted unless it is said what becomes of the alias; from the answer on no
request finds a deleted version; its bytes are removed by a worker (`app.adapters.erasure`) after
the drain, or after they were retained for a while, and only where no other version needs them;
every change is in the tenant's audit log.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.alias_repository import AliasRepository, target_of
from app.adapters.aliases import move_alias, remove_alias
from app.adapters.jobs_repository import REMOVAL_DELAY_S, add_job
from app.adapters.lifecycle import refuse_aliased
from app.adapters.repository import AdapterRepository
from app.adapters.schemas import AdapterView, describe_version
from app.adapters.service import find_version, find_version_to_change, lock_adapter
from app.adapters.states import DELETING, GONE, change_state, is_nameable
from app.audit.trail import AuditTrail
from app.errors import ConflictError
from app.etags import check_etag
from app.rollouts.repository import RolloutRepository
from app.tables import Adapter, AdapterVersion

MAX_DRAIN_S = 86_400


@dataclass(frozen=True, slots=True)
class Deletion:
    """How: `force` lets go of aliases: of a version's as `aliases` says (see `REMOVE_ALIASES`), of
    an adapter's with its rollouts, for which there is nothing else to mean.

    `drain_s`: how long requests that run may go on; by default `REMOVAL_DELAY_S`, or not at all
    where `erase` asks for the bytes to go now, and not to be retained for a restoration.
    """

    force: bool = False
    aliases: str | None = None
    drain_s: int | None = None
    erase: bool = False

    @property
    def delay_s(self) -> int:
        if self.drain_s is not None:
            return self.drain_s
        return 0 if self.erase else REMOVAL_DELAY_S


REMOVE_ALIASES = "remove"
"""In the place of the version that aliases are to mean instead."""


async def delete_version(
    session: AsyncSession,
    tenant_id: str,
    adapter_reference: str,
    reference: str,
    how: Deletion,
    trail: AuditTrail,
    *,
    retained_s: float = 0.0,
    if_match: str | None = None,
) -> AdapterVersion:
    """Stop serving a version. It may be restored until its bytes go, for `retained_s` if not more.

    A second call changes nothing, but that `erase` ends that time.

    Raises ConflictError: `alias_in_use` without `force` and `aliases`, `rollout_in_progress`; and
    as `check_etag`.
    """
    adapter = await lock_adapter(session, tenant_id, adapter_reference)
    version = await find_version_to_change(session, adapter, reference, if_match)
    if version.state in GONE:
        if how.erase and version.state == DELETING:
            await _erase_now(session, version, how, trail)
        return version
    await _refuse_rollouts(session, version)
    if how.force and how.aliases is not None:
        await _let_go_of_aliases(session, adapter, version, how.aliases, trail)
    await refuse_aliased(session, version)
    before = describe_version(version)
    action = change_state(version, DELETING)
    await session.flush()
    retain_until = None
    # What was never active cannot be restored (`app.adapters.lifecycle`).
    if retained_s > how.delay_s and not how.erase and version.activated_at is not None:
        retain_until = trail.at + timedelta(seconds=retained_s)
    await add_job(
        session,
        tenant_id,
        "remove",
        version.locator,
        delay_s=how.delay_s,
        retain_until=retain_until,
    )
    await trail.record(
        session, tenant_id, action, version.id, before=before, after=describe_version(version)
    )
    return version


async def delete_adapter(
    session: AsyncSession,
    tenant_id: str,
    reference: str,
    how: Deletion,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> Adapter:
    """Forget an adapter with its versions, aliases and rollouts; a worker removes the bytes.

    Nothing of it is retained: with its row goes what it could be restored to
    (docs/decisions/0028-deleting-an-adapter.md).
    Raises as `check_etag`; without `force` ConflictError (`alias_in_use`) while it has aliases, of
    which a rollout that is not over moves one.
    """
    adapter = await lock_adapter(session, tenant_id, reference)
    adapters = AdapterRepository(session, tenant_id)
    aliases = await adapters.aliases_of([adapter.id])
    before = AdapterView.of(adapter, aliases[adapter.id])
    check_etag(before.etag, if_match)
    if before.aliases and not how.force:
        raise ConflictError(
            f"It has aliases: {', '.join(before.aliases)}. Delete them first, or say force=true.",
            code="alias_in_use",
            param="adapter",
            details={"aliases": list(before.aliases)},
        )
    for locator in await adapters.locators_of(adapter.id):
        await add_job(session, tenant_id, "remove", locator, delay_s=how.delay_s)
    await adapters.remove(adapter.id)
    await trail.record(session, tenant_id, "adapter.deleted", adapter.id, before=before)
    return adapter


async def _erase_now(
    session: AsyncSession, version: AdapterVersion, how: Deletion, trail: AuditTrail
) -> None:
    """Of one that was deleted before: its bytes are retained no longer."""
    await add_job(session, version.tenant_id, "remove", version.locator, delay_s=how.delay_s)
    shown = {**describe_version(version), "erase": True}
    await trail.record(session, version.tenant_id, "version.deleted", version.id, after=shown)


async def _let_go_of_aliases(
    session: AsyncSession,
    adapter: Adapter,
    version: AdapterVersion,
    aliases: str,
    trail: AuditTrail,
) -> None:
    """Remove what points at `version`, or point it at another one."""
    repository = AliasRepository(session, adapter.tenant_id)
    other = None
    if aliases != REMOVE_ALIASES:
        other = await find_version(session, adapter.tenant_id, adapter, aliases)
        if other.id == version.id or not is_nameable(other, trail.at.date()):
            raise ConflictError(
                f"v{other.number} cannot take over: it is {other.state}, or the one to be deleted.",
                code="version_not_active",
                param="aliases",
            )
    for alias in await repository.list_on(version.id):
        pointing = await repository.get(adapter.id, alias)
        if pointing is None:
            continue
        if other is None:
            await remove_alias(session, adapter, pointing, trail)
        else:
            await move_alias(session, adapter, alias, [target_of(other)], pointing.sticky_by, trail)


async def _refuse_rollouts(session: AsyncSession, version: AdapterVersion) -> None:
    open_ids = await RolloutRepository(session, version.tenant_id).list_open_on(version.id)
    if open_ids:
        raise ConflictError(
            f"A rollout is about v{version.number}. Promote or cancel it first.",
            code="rollout_in_progress",
            param="version",
            details={"rollouts": open_ids},
        )
