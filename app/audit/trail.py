"""Writes down who changed what, in the transaction that changes it.

Knows nothing of what is changed. Invariant: an event and the change it tells of are committed
together or not at all; what is written was shown by the API before, so that no secret is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from app.audit.chain import Head, Link, audit_keys, canonical, head_seal, link_mac
from app.audit.repository import AuditRepository
from app.context import Context
from app.db import tenant_scope
from app.ids import new_id

FLEET = "fleet"  # the chain of what concerns no single tenant, and of their coming and going

WORKER = "worker"

TENANT_CREATED = "tenant.created"

Shown = BaseModel | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditTrail:
    """What one request, or one job, does.

    `actor` is `operator`, `worker`, or the id of a tenant's key.
    """

    key: bytes
    actor: str
    request_id: str
    at: datetime

    async def record(
        self,
        session: AsyncSession,
        tenant_id: str,
        action: str,
        target: str,
        *,
        before: Shown | None = None,
        after: Shown | None = None,
    ) -> None:
        """Append an event to the tenant's chain. The session is in the tenant's scope.

        `action` is `<kind>.<verb>`, in the past tense; `target` an id.
        """
        chain = AuditRepository(session, tenant_id)
        last = await chain.lock_head()
        unsigned = Link(
            tenant_id=tenant_id,
            seq=last.seq + 1,
            id=new_id("aud"),
            recorded_at=self.at,
            actor=self.actor,
            request_id=self.request_id,
            action=action,
            target=target,
            before=canonical(_plain(before)),
            after=canonical(_plain(after)),
            mac="",
        )
        mac = link_mac(self.key, last.mac, unsigned)
        seal = head_seal(self.key, tenant_id, unsigned.seq, mac)
        await chain.append(unsigned._replace(mac=mac), Head(tenant_id, unsigned.seq, mac, seal))

    async def record_for_fleet(
        self,
        session: AsyncSession,
        action: str,
        target: str,
        *,
        before: Shown | None = None,
        after: Shown | None = None,
    ) -> None:
        """Append an event to the fleet's chain. Leaves the session in the fleet's scope."""
        await tenant_scope(session, FLEET)
        await self.record(session, FLEET, action, target, before=before, after=after)


def get_trail(request: Request, context: Context) -> AuditTrail:
    actor = request.state.actor  # AttributeError, hence 500, where no policy ran
    assert isinstance(actor, str)
    return AuditTrail(
        key=audit_keys(context.settings.key_pepper.get_secret_value())[0],
        actor=actor,
        request_id=request.state.request_id,
        at=context.now(),
    )


def worker_trail(peppers: str, job_id: str, at: datetime) -> AuditTrail:
    """Of what a worker does by itself: its job stands where a request's id does."""
    return AuditTrail(audit_keys(peppers)[0], actor=WORKER, request_id=job_id, at=at)


Trail = Annotated[AuditTrail, Depends(get_trail)]


def _plain(shown: Shown | None) -> Any:
    return shown.model_dump(mode="json") if isinstance(shown, BaseModel) else shown
