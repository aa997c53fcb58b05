"""The table of rollouts. Knows nothing of gates.

Invariants the database itself keeps: an alias has at most one rollout that is not over; both of its
versions are of the alias's own adapter; row-level security (migration 0006) is forced.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    ForeignKeyConstraint,
    Index,
    SmallInteger,
    column,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.tables import Table


class Rollout(Table):
    """From one version to another. `ladder[step]` is the candidate's share now, in percent.

    `step_since`: since when, or since it was resumed there. `verdict`: why a gate ended it.
    `sealed_golden`: golden prompts, which open with the queue's secret alone, and are gone when the
    rollout is over. `golden_due_at`: not before that they are to be asked; null where there are
    none, or they were. `golden_results`: of `app.rollouts.golden.GoldenOutcome`.
    """

    __tablename__ = "rollouts"
    __table_args__ = (
        ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], ondelete="CASCADE"
        ),
        ForeignKeyConstraint(
            ["from_version_id", "adapter_id", "tenant_id"],
            ["adapter_versions.id", "adapter_versions.adapter_id", "adapter_versions.tenant_id"],
        ),
        ForeignKeyConstraint(
            ["to_version_id", "adapter_id", "tenant_id"],
            ["adapter_versions.id", "adapter_versions.adapter_id", "adapter_versions.tenant_id"],
        ),
        CheckConstraint(
            "state IN ('running', 'paused', 'succeeded', 'rolled_back', 'cancelled')", name="state"
        ),
        Index(
            "uq_rollouts_open_alias",
            "adapter_id",
            "alias",
            unique=True,
            postgresql_where=column("state").in_(["running", "paused"]),
        ),
        Index("ix_rollouts_due", "due_at", postgresql_where=column("state") == "running"),
        Index(
            "ix_rollouts_golden_due",
            "golden_due_at",
            postgresql_where=column("golden_due_at").is_not(None),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    adapter_id: Mapped[str]
    alias: Mapped[str]
    from_version_id: Mapped[str]
    to_version_id: Mapped[str]
    ladder: Mapped[list[int]] = mapped_column(ARRAY(SmallInteger))
    soak_s: Mapped[int]
    gates: Mapped[list[dict[str, Any]]]
    on_fail: Mapped[str]
    sticky_by: Mapped[str | None]
    state: Mapped[str]
    step: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    step_since: Mapped[datetime] = mapped_column(server_default=func.now())
    paused_at: Mapped[datetime | None]
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())
    verdict: Mapped[dict[str, Any] | None]
    sealed_golden: Mapped[bytes | None]
    golden_due_at: Mapped[datetime | None]
    golden_results: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]
