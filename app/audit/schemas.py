"""The audit log as operators are shown it. Knows nothing of SQL."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel

from app.audit.chain import Head, Verifier
from app.audit.tables import AuditEvent
from app.bodies import Timestamp


class AuditEventView(BaseModel):
    """`actor`: `operator`, or the key that did it. `request_id`: the HTTP request's."""

    object: Literal["audit_event"] = "audit_event"
    id: str
    tenant_id: str
    seq: int
    recorded_at: Timestamp
    actor: str
    request_id: str
    action: str
    target: str
    before: Any
    after: Any
    mac: str

    @classmethod
    def of(cls, row: AuditEvent) -> AuditEventView:
        return cls(
            id=row.id,
            tenant_id=row.tenant_id,
            seq=row.seq,
            recorded_at=row.recorded_at,
            actor=row.actor,
            request_id=row.request_id,
            action=row.action,
            target=row.target,
            before=_value(row.before),
            after=_value(row.after),
            mac=row.mac,
        )


class HeadView(BaseModel):
    """Where a chain ends; keep `seq` and `mac` elsewhere, and verify against them later."""

    object: Literal["audit_head"] = "audit_head"
    tenant_id: str
    seq: int
    mac: str

    @classmethod
    def of(cls, head: Head) -> HeadView:
        return cls(tenant_id=head.tenant_id, seq=head.seq, mac=head.mac)


class HeadList(BaseModel):
    """`last_id` is a tenant's id, and the next page's `after`."""

    object: Literal["list"] = "list"
    data: list[HeadView]
    has_more: bool
    last_id: str | None


class Verification(BaseModel):
    """What following a chain found. `is_intact` exactly where `findings` is empty."""

    object: Literal["audit_verification"] = "audit_verification"
    tenant_id: str
    is_intact: bool
    num_events: int
    findings: list[str]

    @classmethod
    def of(cls, tenant_id: str, verifier: Verifier) -> Verification:
        return cls(
            tenant_id=tenant_id,
            is_intact=not verifier.findings,
            num_events=verifier.num_events,
            findings=verifier.findings,
        )


def _value(text: str | None) -> Any:
    """A JSON value as it was recorded; what no longer is one is shown as it stands."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text
