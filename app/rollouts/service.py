"""What may be done with a rollout: start, advance, pause, resume, promote, cancel, roll back.

Knows nothing of HTTP, Redis or gates. The session is in the tenant's scope. Invariants: the alias's
adapter is locked before its rollout; whatever moves the rollout moves its alias in the same
transaction, so that what requests follow and what is shown are one; each move is in the audit log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.alias_repository import AliasRepository, target_of
from app.adapters.aliases import move_alias, refuse_rollout
from app.adapters.service import find_adapter, find_version, lock_adapter
from app.adapters.states import is_nameable
from app.adapters.versions_repository import VersionRepository
from app.adapters.weighted import WHOLE
from app.audit.trail import AuditTrail
from app.errors import ConflictError, NotFoundError
from app.etags import check_etag
from app.ids import new_id
from app.rollouts.decision import share_of
from app.rollouts.golden_intake import GoldenIntake
from app.rollouts.repository import OPEN, RolloutRepository
from app.rollouts.schemas import RolloutCreate, RolloutView
from app.rollouts.tables import Rollout
from app.tables import Adapter, AdapterVersion

_ROLLOUT_ID = re.compile(r"rol_[0-9a-z]{26}")


async def start_rollout(
    session: AsyncSession,
    tenant_id: str,
    adapter_reference: str,
    body: RolloutCreate,
    golden: GoldenIntake,
    trail: AuditTrail,
) -> Rollout:
    """Begin with the ladder's first step; a worker asks the golden prompts at once.

    Raises NotFoundError, or ConflictError: `rollout_in_progress`, `alias_weighted`,
    `version_not_active`; or as `GoldenIntake.take`.
    """
    adapter = await lock_adapter(session, tenant_id, adapter_reference)
    pointing = await AliasRepository(session, tenant_id).get(adapter.id, body.alias)
    if pointing is None:
        raise NotFoundError("No such alias.", param="alias")
    await refuse_rollout(session, adapter, body.alias)
    to = await find_version(session, tenant_id, adapter, body.to)
    if len(pointing.targets) > 1 or pointing.primary.version_id == to.id:
        raise ConflictError(
            "A rollout goes from the one version that the alias means to another one.",
            code="alias_weighted" if len(pointing.targets) > 1 else "alias_points_there",
            param="alias",
        )
    rollout = Rollout(
        id=new_id("rol"),
        tenant_id=tenant_id,
        adapter_id=adapter.id,
        alias=body.alias,
        from_version_id=pointing.primary.version_id,
        to_version_id=to.id,
        ladder=body.ladder,
        soak_s=body.soak_s,
        gates=[asdict(each.gate) for each in body.gates],
        on_fail=body.on_fail,
        sticky_by=body.sticky_by or pointing.sticky_by,
        state="running",
        step=0,
        step_since=trail.at,
        due_at=trail.at,
    )
    if body.golden:
        await golden.take(session, rollout, body.golden, trail.at)
    await RolloutRepository(session, tenant_id).add(rollout)
    await _share(session, adapter, rollout, share_of(rollout), trail)
    if share_of(rollout) == WHOLE:
        _finish(rollout, "succeeded", trail.at)
    return await _record(session, "rollout.started", None, rollout, trail)


async def find_rollout(
    session: AsyncSession, tenant_id: str, adapter_reference: str, rollout_id: str
) -> Rollout:
    """Raises NotFoundError."""
    adapter = await find_adapter(session, tenant_id, adapter_reference)
    rollout = None
    if _ROLLOUT_ID.fullmatch(rollout_id):
        rollout = await RolloutRepository(session, tenant_id).get(adapter.id, rollout_id)
    if rollout is None:
        raise NotFoundError("No such rollout.", param="rollout")
    return rollout


async def pause_rollout(
    session: AsyncSession,
    tenant_id: str,
    adapter: str,
    rollout_id: str,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> Rollout:
    """Leave the alias as it is; the gates do not count meanwhile. A second call changes nothing."""
    _, rollout = await _lock_open(session, tenant_id, adapter, rollout_id, if_match)
    if rollout.state == "paused":
        return rollout
    before = RolloutView.of(rollout)
    pause(rollout, trail.at, None)
    return await _record(session, "rollout.paused", before, rollout, trail)


async def resume_rollout(
    session: AsyncSession,
    tenant_id: str,
    adapter: str,
    rollout_id: str,
    golden: GoldenIntake,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> Rollout:
    """Go on where it was, on new samples. A second call changes nothing.

    Raises also as `GoldenIntake.take_again`.
    """
    _, rollout = await _lock_open(session, tenant_id, adapter, rollout_id, if_match)
    if rollout.state == "running":
        return rollout
    before = RolloutView.of(rollout)
    assert rollout.paused_at is not None, "paused since some time"
    rollout.state, rollout.verdict = "running", None
    # The step begins anew: what was seen before the pause does not count any more.
    rollout.step_since = trail.at
    rollout.due_at, rollout.paused_at = trail.at, None
    await golden.take_again(session, rollout, trail.at)
    return await _record(session, "rollout.resumed", before, rollout, trail)


async def promote_rollout(
    session: AsyncSession,
    tenant_id: str,
    adapter: str,
    rollout_id: str,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> Rollout:
    """All requests go to the candidate now, whatever gates say."""
    row, rollout = await _lock_open(session, tenant_id, adapter, rollout_id, if_match)
    before = RolloutView.of(rollout)
    await _share(session, row, rollout, WHOLE, trail)
    _finish(rollout, "succeeded", trail.at)
    return await _record(session, "rollout.promoted", before, rollout, trail)


async def cancel_rollout(
    session: AsyncSession,
    tenant_id: str,
    adapter: str,
    rollout_id: str,
    trail: AuditTrail,
    *,
    if_match: str | None = None,
) -> Rollout:
    """All requests go back to where the alias pointed before."""
    row, rollout = await _lock_open(session, tenant_id, adapter, rollout_id, if_match)
    before = RolloutView.of(rollout)
    await _share(session, row, rollout, 0, trail)
    _finish(rollout, "cancelled", trail.at)
    return await _record(session, "rollout.cancelled", before, rollout, trail)


async def advance(
    session: AsyncSession, adapter: Adapter, rollout: Rollout, trail: AuditTrail
) -> Rollout:
    """A locked rollout goes one step up; with the last it has succeeded."""
    before = RolloutView.of(rollout)
    rollout.step += 1
    rollout.step_since = trail.at
    share = share_of(rollout)
    await _share(session, adapter, rollout, share, trail)
    if share == WHOLE:
        _finish(rollout, "succeeded", trail.at)
    action = "rollout.succeeded" if share == WHOLE else "rollout.advanced"
    return await _record(session, action, before, rollout, trail)


async def fail(
    session: AsyncSession,
    adapter: Adapter,
    rollout: Rollout,
    verdict: Mapping[str, Any],
    trail: AuditTrail,
) -> Rollout:
    """A gate of a locked rollout failed: back it goes, or it waits for somebody to look."""
    before = RolloutView.of(rollout)
    rollout.verdict = dict(verdict)
    if rollout.on_fail == "pause":
        pause(rollout, trail.at, rollout.verdict)
        return await _record(session, "rollout.paused", before, rollout, trail)
    await _share(session, adapter, rollout, 0, trail)
    _finish(rollout, "rolled_back", trail.at)
    return await _record(session, "rollout.rolled_back", before, rollout, trail)


def pause(rollout: Rollout, at: datetime, verdict: dict[str, Any] | None) -> None:
    rollout.state, rollout.paused_at, rollout.verdict = "paused", at, verdict


def postpone(rollout: Rollout, at: datetime, seconds: float) -> None:
    """Nobody looks at it before that."""
    rollout.due_at = at + timedelta(seconds=seconds)


def _finish(rollout: Rollout, state: str, at: datetime) -> None:
    rollout.state, rollout.finished_at = state, at
    rollout.sealed_golden = rollout.golden_due_at = None


async def _share(
    session: AsyncSession, adapter: Adapter, rollout: Rollout, share: int, trail: AuditTrail
) -> None:
    """Give the candidate this share of the alias's requests, in percent.

    Raises ConflictError (`version_not_active`).
    """
    weighted = [(rollout.from_version_id, WHOLE - share), (rollout.to_version_id, share)]
    versions = VersionRepository(session, adapter.tenant_id)
    targets = []
    for version_id, weight in weighted:
        if weight == 0:
            continue
        version = await versions.get(version_id)
        if version is None or not is_nameable(version, trail.at.date()):
            raise _not_active(version)
        targets.append(target_of(version, weight))
    await move_alias(session, adapter, rollout.alias, targets, rollout.sticky_by, trail)


def _not_active(version: AdapterVersion | None) -> ConflictError:
    name = "A version" if version is None else f"v{version.number}"
    return ConflictError(
        f"{name} of the rollout may not be named any more.", code="version_not_active"
    )


async def _lock_open(
    session: AsyncSession,
    tenant_id: str,
    adapter_reference: str,
    rollout_id: str,
    if_match: str | None,
) -> tuple[Adapter, Rollout]:
    """Raises NotFoundError, ConflictError (`rollout_over`), and as `check_etag`."""
    found = await find_rollout(session, tenant_id, adapter_reference, rollout_id)
    adapter = await lock_adapter(session, tenant_id, adapter_reference)
    rollout = await RolloutRepository(session, tenant_id).lock(found.id)
    if rollout is None:
        raise NotFoundError("No such rollout.", param="rollout")
    check_etag(RolloutView.of(rollout).etag, if_match)
    if rollout.state not in OPEN:
        raise ConflictError(
            f"The rollout is {rollout.state.replace('_', ' ')}.",
            code="rollout_over",
            param="rollout",
        )
    return adapter, rollout


async def _record(
    session: AsyncSession,
    action: str,
    before: RolloutView | None,
    rollout: Rollout,
    trail: AuditTrail,
) -> Rollout:
    await session.flush()
    after = RolloutView.of(rollout)
    await trail.record(session, rollout.tenant_id, action, rollout.id, before=before, after=after)
    return rollout
