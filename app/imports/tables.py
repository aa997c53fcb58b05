"""The table of import jobs. Row-level security (migration 0008) is forced on it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKeyConstraint,
    Index,
    SmallInteger,
    false,
    func,
    true,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.tables import Table


class Import(Table):
    """An adapter that a worker is to fetch.

    queued <-> running -> succeeded | failed; queued, running -> cancelled. `revision` is what
    `source` meant when the job began, and is fetched whatever it means later. `sealed_token` opens
    with the queue's secret alone, and is gone when the job ends; `credential_ref` names one of the
    workers' own instead. `lease_until`: until when the worker that runs it need not be thought
    dead. `error`: `{"code", "message", ...}`. `strict`, `license`: of
    `app.adapters.submission.Terms`; `activates`: of its `Submission`; `created_by`: the actor of
    the audit log.
    """

    __tablename__ = "imports"
    __table_args__ = (
        ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], ondelete="CASCADE"
        ),
        CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="state"
        ),
        CheckConstraint(
            "ended_at IS NULL OR sealed_token IS NULL", name="token_is_gone_at_the_end"
        ),
        Index("ix_imports_adapter_id", "tenant_id", "adapter_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    adapter_id: Mapped[str]
    source: Mapped[str]
    revision: Mapped[str | None]
    sha256: Mapped[str | None]
    sealed_token: Mapped[bytes | None]
    credential_ref: Mapped[str | None]
    created_by: Mapped[str | None]
    license: Mapped[str | None]
    strict: Mapped[bool] = mapped_column(server_default=false())
    activates: Mapped[bool] = mapped_column(server_default=true())
    state: Mapped[str] = mapped_column(server_default="queued")
    bytes_done: Mapped[int] = mapped_column(BigInteger, server_default="0")
    bytes_total: Mapped[int | None] = mapped_column(BigInteger)
    attempts: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    lease_until: Mapped[datetime | None]
    version_id: Mapped[str | None]
    error: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


Index("ix_imports_open", Import.created_at, postgresql_where=Import.ended_at.is_(None))
