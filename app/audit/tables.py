"""The tables of the audit log.

Knows nothing of what is logged. Invariants the database itself keeps: an event is never changed and
never deleted (triggers of migration 0005); row-level security (of the same) is forced on both.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from app.tables import Table


class AuditEvent(Table):
    """One change. `before` and `after` are JSON texts; `mac` covers the row and the one before it.

    No foreign key: the log outlives the tenant.
    """

    __tablename__ = "audit_events"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    id: Mapped[str] = mapped_column(unique=True)
    recorded_at: Mapped[datetime]
    actor: Mapped[str]
    request_id: Mapped[str]
    action: Mapped[str]
    target: Mapped[str]
    before: Mapped[str | None]
    after: Mapped[str | None]
    mac: Mapped[str]


class AuditHead(Table):
    """The last event of a chain. `seal` is a MAC of this row, which nobody else can make."""

    __tablename__ = "audit_heads"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
    mac: Mapped[str]
    seal: Mapped[str]
