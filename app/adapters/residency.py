"""Where a version is: what engines say of it, and what operators have them do with it.

Knows nothing of HTTP. Invariants: residency is an engine's own word and never the registry's guess;
no registry connection is held while engines are waited for; every lever that is pulled is in the
audit log, with what each engine said.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.erasure import EnginesSilentError, LetGo
from app.adapters.service import find_adapter, find_version
from app.adapters.states import refuse_unloadable
from app.audit.trail import AuditTrail
from app.context import AppContext
from app.db import tenant_scope
from app.errors import ConflictError, UnavailableError
from app.tables import AdapterVersion
from engine.messages import (
    AdapterAck,
    AdapterRef,
    AdapterReport,
    Lever,
    Outcome,
    ResidencyState,
)
from engine.transport.errors import QueueUnavailableError
from engine.transport.levers import EngineLevers, Order

LET_GO_TIMEOUT_S = 10.0
POLL_S = 0.2  # until an engine lives

_ACTIONS = {
    Lever.PRELOAD: "version.preloaded",
    Lever.PIN: "version.pinned",
    Lever.EVICT: "version.evicted",
}


@dataclass(frozen=True, slots=True)
class Pulled:
    """A lever that was pulled. `said`: by engine; who is missing has not answered in time."""

    version: AdapterVersion
    lever: Lever
    order: Order
    said: Mapping[str, AdapterAck]

    def shown(self) -> dict[str, Any]:
        """For the audit log."""
        return {
            "version": f"v{self.version.number}",
            "digest": self.version.digest,
            "engines": {
                engine_id: self.said[engine_id].outcome.value if engine_id in self.said else None
                for engine_id in self.order.engine_ids
            },
        }


async def reports_on(
    context: AppContext, tenant_id: str, adapter: str, version: str
) -> tuple[AdapterVersion, list[AdapterReport], list[str]]:
    """The version, what engines that have anything of it say, and the engines that live."""
    async with context.database.session() as session:
        found = await find_at_tenant(session, tenant_id, adapter, version)
    try:
        reports = await context.levers.reports(tenant_id, found.digest)
        return found, reports, await context.levers.live_engines()
    except QueueUnavailableError as error:
        raise UnavailableError(internal=str(error)) from error


async def pull_lever(
    context: AppContext,
    tenant_id: str,
    adapter: str,
    version: str,
    lever: Lever,
    trail: AuditTrail,
    *,
    replicas: int | None = None,
    until_s: float = 0.0,
    wait_s: float,
) -> Pulled:
    """Have `replicas` engines (None: all that live) do something with a version.

    Raises NotFoundError, ConflictError (`version_not_active`) or UnavailableError.
    """
    async with context.database.session() as session:
        found = await find_at_tenant(session, tenant_id, adapter, version)
    if lever is not Lever.EVICT:
        refuse_unloadable(found)
    levers = context.levers
    try:
        engine_ids = await _choose(levers, tenant_id, found.digest, replicas)
        order = await levers.give(lever, adapter_ref(found), engine_ids, until_s=until_s)
        pulled = Pulled(found, lever, order, await levers.answers(order, wait_s))
    except QueueUnavailableError as error:
        raise UnavailableError(internal=str(error)) from error
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        await trail.record(session, tenant_id, _ACTIONS[lever], found.id, after=pulled.shown())
        await session.commit()
    return pulled


async def have_ready(
    context: AppContext,
    tenant_id: str,
    adapter: str,
    versions: Collection[str],
    trail: AuditTrail,
    *,
    wait_s: float,
) -> None:
    """Have all engines load these versions, so that nobody's first request does.

    `wait_s`: for all of them together; with 0 nothing is loaded. Raises ConflictError
    (`target_not_ready`) where no engine has one of them in time. Without `wait_s` and without any
    engine there is nobody who could have it, and nothing is raised.
    """
    deadline = time.monotonic() + wait_s
    for version in versions:
        found, reports, live = await reports_on(context, tenant_id, adapter, version)
        num_ready = sum(each.state is ResidencyState.READY for each in reports)
        has_it = num_ready > 0 or (wait_s == 0 and not live)
        if wait_s > 0 and num_ready < max(1, len(live)):
            await _until_one_lives(context, deadline)
            left_s = max(0.0, deadline - time.monotonic())
            pulled = await pull_lever(
                context, tenant_id, adapter, version, Lever.PRELOAD, trail, wait_s=left_s
            )
            has_it |= any(ack.outcome is Outcome.READY for ack in pulled.said.values())
        if not has_it:
            raise ConflictError(
                f"No engine has v{found.number} ready. Preload it, or ask again with '?wait=30'.",
                code="target_not_ready",
                param="targets",
            )


async def _until_one_lives(context: AppContext, deadline: float) -> None:
    """Raises UnavailableError. Returns at the deadline at the latest."""
    try:
        while time.monotonic() < deadline:
            if await context.levers.live_engines():
                return
            await asyncio.sleep(POLL_S)
    except QueueUnavailableError as error:
        raise UnavailableError(internal=str(error)) from error


def adapter_ref(version: AdapterVersion) -> AdapterRef:
    """What engines know a version by."""
    return AdapterRef(
        tenant_id=version.tenant_id,
        digest=version.digest,
        locator=version.locator,
        certificate=(version.certificate or {}).get("certificate", ""),
    )


class QueueEngines:
    """`app.adapters.erasure.Engines`, through the queue."""

    def __init__(self, levers: EngineLevers, *, timeout_s: float = LET_GO_TIMEOUT_S) -> None:
        self._levers = levers
        self._timeout_s = timeout_s

    async def let_go(self, tenant_id: str, digest: str) -> list[LetGo]:
        """Raises EnginesSilentError, or QueueUnavailableError."""
        adapter = AdapterRef(tenant_id=tenant_id, digest=digest, locator="")
        engine_ids = await self._levers.live_engines()
        order = await self._levers.give(Lever.LET_GO, adapter, engine_ids)
        said = await self._levers.answers(order, self._timeout_s)
        let_go = [LetGo(each.engine_id, each.num_aborted) for each in said.values()]
        silent = {*order.engine_ids} - said.keys()
        silent &= {*await self._levers.live_engines()}
        if silent:
            raise EnginesSilentError(sorted(silent), let_go)
        return let_go


async def find_at_tenant(
    session: AsyncSession, tenant_id: str, adapter: str, version: str
) -> AdapterVersion:
    await tenant_scope(session, tenant_id)
    row = await find_adapter(session, tenant_id, adapter)
    return await find_version(session, tenant_id, row, version)


async def _choose(
    levers: EngineLevers, tenant_id: str, digest: str, replicas: int | None
) -> Collection[str]:
    """So many engines, those first that have it."""
    live = await levers.live_engines()
    if replicas is None or replicas >= len(live):
        return live
    reports = await levers.reports(tenant_id, digest)
    ready = [each.engine_id for each in reports if each.state is ResidencyState.READY]
    others = [engine_id for engine_id in live if engine_id not in ready]
    return [*ready, *others][:replicas]
