"""What may be done with an alias: point it at one version or several, move it back, delete it.

Knows nothing of HTTP, and not of who asks. The session is in the tenant's scope. Invariants: an
alias points at versions of its own adapter that may be named, with weights that sum to 100; every
later request follows a move, and none that runs; each move is in the alias's history and in the
audit log; a roll-back goes back in history and never forward to what was left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.alias_repository import (
    SYSTEM,
    AliasRepository,
    Pointing,
    Shadow,
    Target,
    target_of,
)
from app.adapters.alias_schemas import AliasPut, AliasView
from app.adapters.names import is_alias
from app.adapters.service import find_adapter, find_version, lock_adapter
from app.adapters.states import SHADOWABLE, is_nameable, refuse_unloadable
from app.adapters.tables import AliasChange
from app.adapters.versions_repository import VersionRepository
from app.adapters.weighted import WHOLE
from app.audit.trail import AuditTrail
from app.errors import (
    ConflictError,
    NotFoundError,
    PreconditionFailedError,
    UnprocessableError,
    shorten,
)
from app.etags import check_etag
from app.rollouts.repository import find_open_rollout
from app.tables import Adapter, AdapterVersion

_CHANGE_ID = re.compile(r"alc_[0-9a-z]{26}")


@dataclass(frozen=True, slots=True)
class NamedAlias:
    """An alias as a request names it. `adapter`: its name or id. `if_match`: of `check_etag`."""

    tenant_id: str
    adapter: str
    alias: str
    if_match: str | None = None


async def find_alias(session: AsyncSession, named: NamedAlias) -> Pointing:
    """Raises NotFoundError."""
    adapter = await find_adapter(session, named.tenant_id, named.adapter)
    return await _get(session, adapter, named.alias)


async def put_alias(
    session: AsyncSession, named: NamedAlias, body: AliasPut, trail: AuditTrail
) -> Pointing:
    """Point an alias at what `body` says, atomically for every later request.

    Raises NotFoundError, UnprocessableError (`name_invalid`, `weights_invalid`) or ConflictError
    (`version_not_active`, `rollout_in_progress`, or as `check_etag`).
    """
    adapter, targets, shadow = await _check_put(session, named, body, trail)
    return await move_alias(
        session, adapter, named.alias, targets, body.sticky_by, trail, shadow=shadow
    )


async def list_newcomers(
    session: AsyncSession, named: NamedAlias, body: AliasPut, trail: AuditTrail
) -> list[str]:
    """Ids of the versions that `body` names and no alias of the adapter means yet.

    Nothing is moved. Raises as `put_alias`.
    """
    _, targets, _ = await _check_put(session, named, body, trail)
    aliases = AliasRepository(session, named.tenant_id)
    return [each.version_id for each in targets if not await aliases.list_on(each.version_id)]


async def roll_back(
    session: AsyncSession, named: NamedAlias, to: str | None, trail: AuditTrail
) -> Pointing:
    """Back to the entry `to` of its history, or to the one before where it points now.

    A second roll-back goes one further back. Nothing is read or loaded.

    Raises NotFoundError, or ConflictError (`no_previous`, `version_not_active`).
    """
    adapter = await lock_adapter(session, named.tenant_id, named.adapter)
    before = await _get(session, adapter, named.alias)
    _check_match(before, named.if_match)
    await refuse_rollout(session, adapter, named.alias)
    change = await _entry(AliasRepository(session, named.tenant_id), before, to)
    versions = VersionRepository(session, named.tenant_id)
    found = [
        (await versions.get(target["version_id"]), target["weight"]) for target in change.targets
    ]
    known = [(version, weight) for version, weight in found if version is not None]
    targets = _checked(known, trail.at.date())
    return await move_alias(
        session, adapter, named.alias, targets, change.sticky_by, trail, restores=change.id
    )


async def delete_alias(session: AsyncSession, named: NamedAlias, trail: AuditTrail) -> None:
    """Raises NotFoundError, or ConflictError as `check_etag`."""
    adapter = await lock_adapter(session, named.tenant_id, named.adapter)
    before = await _get(session, adapter, named.alias)
    _check_match(before, named.if_match)
    await refuse_rollout(session, adapter, named.alias)
    await remove_alias(session, adapter, before, trail)


async def move_alias(
    session: AsyncSession,
    adapter: Adapter,
    alias: str,
    targets: Sequence[Target],
    sticky_by: str | None,
    trail: AuditTrail | None,
    *,
    restores: str | None = None,
    shadow: Shadow | None = None,
    by_system: bool = False,
) -> Pointing:
    """Point an alias of a locked adapter at targets that were checked, and write it down.

    trail: None where it is written down in the alias's history alone. by_system: nobody asked.
    """
    aliases = AliasRepository(session, adapter.tenant_id)
    before = await aliases.get(adapter.id, alias)
    await aliases.put(
        adapter.id,
        alias,
        targets,
        sticky_by=sticky_by,
        actor=SYSTEM if by_system or trail is None else trail.actor,
        restores=restores,
        shadow=shadow,
    )
    after = await aliases.get(adapter.id, alias)
    assert after is not None
    if trail is not None:
        await trail.record(
            session,
            adapter.tenant_id,
            "alias.moved" if restores is None else "alias.rolled_back",
            adapter.id,
            before=None if before is None else AliasView.of(before),
            after=AliasView.of(after),
        )
    return after


async def remove_alias(
    session: AsyncSession, adapter: Adapter, pointing: Pointing, trail: AuditTrail
) -> None:
    """Of a locked adapter."""
    aliases = AliasRepository(session, adapter.tenant_id)
    await aliases.remove(adapter.id, pointing.alias, actor=trail.actor)
    before = AliasView.of(pointing)
    await trail.record(session, adapter.tenant_id, "alias.deleted", adapter.id, before=before)


async def refuse_rollout(session: AsyncSession, adapter: Adapter, alias: str) -> None:
    """Raises ConflictError (`rollout_in_progress`): only the rollout itself moves its alias."""
    open_id = await find_open_rollout(session, adapter.tenant_id, adapter.id, alias)
    if open_id is not None:
        raise ConflictError(
            f"A rollout moves '{alias}' at the moment. Promote or cancel it first.",
            code="rollout_in_progress",
            param="alias",
            details={"rollout": open_id},
        )


async def _check_put(
    session: AsyncSession, named: NamedAlias, body: AliasPut, trail: AuditTrail
) -> tuple[Adapter, list[Target], Shadow | None]:
    """The adapter, locked, the targets and the shadow. Raises as `put_alias`."""
    if not is_alias(named.alias):
        raise UnprocessableError(
            f"'{shorten(named.alias)}' cannot be an alias: it follows the rules of adapters' "
            "names, and is neither 'sha256' nor 'v' and digits.",
            code="name_invalid",
            param="alias",
        )
    adapter = await lock_adapter(session, named.tenant_id, named.adapter)
    versions = [
        (await find_version(session, named.tenant_id, adapter, each.version), each.weight)
        for each in body.weighted
    ]
    targets = _checked(versions, trail.at.date())
    before = await AliasRepository(session, named.tenant_id).get(adapter.id, named.alias)
    _check_match(before, named.if_match)
    await refuse_rollout(session, adapter, named.alias)
    return adapter, targets, await _find_shadow(session, adapter, body)


async def _find_shadow(session: AsyncSession, adapter: Adapter, body: AliasPut) -> Shadow | None:
    """Raises NotFoundError, or ConflictError (`version_not_active`)."""
    if body.shadow is None:
        return None
    version = await find_version(session, adapter.tenant_id, adapter, body.shadow.version)
    refuse_unloadable(version, states=SHADOWABLE, param="shadow")
    return Shadow(version.id, version.number, body.shadow.weight)


async def _get(session: AsyncSession, adapter: Adapter, alias: str) -> Pointing:
    pointing = await AliasRepository(session, adapter.tenant_id).get(adapter.id, alias)
    if pointing is None:
        raise NotFoundError("No such alias.", param="alias")
    return pointing


async def _entry(aliases: AliasRepository, before: Pointing, to: str | None) -> AliasChange:
    """The entry of the history that a roll-back restores."""
    if to is not None:
        change = None
        if _CHANGE_ID.fullmatch(to):
            change = await aliases.get_change(before.adapter_id, before.alias, to)
        if change is None or not change.targets:
            raise NotFoundError("No such entry in the alias's history.", param="to")
        return change
    latest = await aliases.latest_change(before.adapter_id, before.alias)
    # Where it points now is the entry that it was rolled back to, however often that was.
    while latest is not None and latest.restores is not None:
        latest = await aliases.get_change(before.adapter_id, before.alias, latest.restores)
    previous = None if latest is None else await aliases.change_before(latest)
    if previous is None:
        raise ConflictError(
            f"'{before.alias}' has pointed nowhere else before.", code="no_previous", param="alias"
        )
    return previous


def _checked(versions: Sequence[tuple[AdapterVersion, int]], today: date) -> list[Target]:
    """Raises UnprocessableError (`weights_invalid`) or ConflictError (`version_not_active`)."""
    if len({version.id for version, _ in versions}) < len(versions):
        raise _bad_weights("names a version twice")
    if sum(weight for _, weight in versions) != WHOLE:
        raise _bad_weights(f"does not sum to {WHOLE}")
    for version, _ in versions:
        if not is_nameable(version, today):
            raise ConflictError(
                f"v{version.number} is {version.state}; an alias needs an active version.",
                code="version_not_active",
                param="version",
            )
    return [target_of(version, weight) for version, weight in versions]


def _bad_weights(what: str) -> UnprocessableError:
    return UnprocessableError(f"'targets' {what}.", code="weights_invalid", param="targets")


def _check_match(before: Pointing | None, if_match: str | None) -> None:
    """What is not there is in no state that `If-Match` could name, nor in any (RFC 9110 13.1.1)."""
    if before is not None:
        check_etag(AliasView.of(before).etag, if_match)
    elif if_match is not None:
        raise PreconditionFailedError(
            "There is no such alias.", code="etag_mismatch", details={"etag": None}
        )
