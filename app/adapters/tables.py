"""Tables of versions' lives: where aliases point and pointed, what was erased, what happened.

Knows nothing of rules. Invariants the database itself keeps: a target is a version of its alias's
own adapter, and of its tenant; row-level security (migration 0006) is forced on every table here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKeyConstraint,
    Identity,
    Index,
    SmallInteger,
    UniqueConstraint,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.tables import Table


class AliasTarget(Table):
    """A version that an alias may mean, and in how many of a hundred requests."""

    __tablename__ = "adapter_alias_targets"
    __table_args__ = (
        ForeignKeyConstraint(
            ["adapter_id", "alias"],
            ["adapter_aliases.adapter_id", "adapter_aliases.alias"],
            ondelete="CASCADE",
        ),
        # The alias's own end comes too late for the versions, where all go with their adapter.
        ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], ondelete="CASCADE"
        ),
        ForeignKeyConstraint(
            ["version_id", "adapter_id", "tenant_id"],
            ["adapter_versions.id", "adapter_versions.adapter_id", "adapter_versions.tenant_id"],
        ),
        CheckConstraint("weight BETWEEN 1 AND 100", name="weight"),
    )

    adapter_id: Mapped[str] = mapped_column(primary_key=True)
    alias: Mapped[str] = mapped_column(primary_key=True)
    version_id: Mapped[str] = mapped_column(primary_key=True, index=True)
    tenant_id: Mapped[str]
    weight: Mapped[int] = mapped_column(SmallInteger)


class AliasChange(Table):
    """Where an alias was pointed at one time. `targets`: `[{"version_id", "version", "weight"}]`.

    `restores` is the entry that a roll-back went back to. No targets: the alias was deleted.
    """

    __tablename__ = "adapter_alias_history"
    __table_args__ = (
        ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], ondelete="CASCADE"
        ),
        UniqueConstraint("id"),
        Index("ix_adapter_alias_history_alias", "adapter_id", "alias", "seq"),
    )

    seq: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    id: Mapped[str]
    tenant_id: Mapped[str]
    adapter_id: Mapped[str]
    alias: Mapped[str]
    targets: Mapped[list[dict[str, Any]]]
    sticky_by: Mapped[str | None]
    actor: Mapped[str]
    restores: Mapped[str | None]
    changed_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Erasure(Table):
    """Bytes that are gone from the store and from every engine. No foreign key: it outlives them.

    `engines`: what each engine that lived said: `[{"engine_id", "num_aborted"}]`.
    """

    __tablename__ = "adapter_erasures"
    __table_args__ = (Index("ix_adapter_erasures_tenant_id", "tenant_id", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    digest: Mapped[str]
    version_ids: Mapped[list[str]]
    engines: Mapped[list[dict[str, Any]]]
    erased_at: Mapped[datetime]


class Event(Table):
    """One change of the audit log, in the order in which changes were committed.

    Rows are made by a trigger (migration 0006). No foreign key: the feed outlives the tenant.
    """

    __tablename__ = "events"
    __table_args__ = (UniqueConstraint("id"),)

    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    id: Mapped[str]
    tenant_id: Mapped[str]
    type: Mapped[str]
    object_id: Mapped[str]
    data: Mapped[str | None]
    created_at: Mapped[datetime]
