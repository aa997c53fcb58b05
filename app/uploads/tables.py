"""Tables of uploads in parts, and of how many uploads of a day.

Knows nothing of rules. Invariants the database itself keeps: a part belongs to an upload of the
same tenant; row-level security (migration 0008) is forced on every table here.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    UniqueConstraint,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.tables import Table


class Upload(Table):
    """A version on its way in: what it will hold, and what became of it.

    uploading <-> completing -> completed | rejected; uploading -> cancelled | expired.
    `files`: `[{"path", "bytes", "sha256", "locator"}]`; the last where the tenant has the bytes
    already. `refusal`: the answer that a rejected upload is given again. `cleaned_at`: when its
    parts were removed. No foreign key: parts outlive their adapter, and a worker removes them.
    """

    __tablename__ = "uploads"
    __table_args__ = (
        CheckConstraint(
            "state IN ('uploading', 'completing', 'completed', 'rejected', 'cancelled', 'expired')",
            name="state",
        ),
        UniqueConstraint("id", "tenant_id"),
        Index("ix_uploads_adapter_id", "tenant_id", "adapter_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    adapter_id: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="uploading")
    files: Mapped[list[dict[str, Any]]]
    part_bytes: Mapped[int]
    version_id: Mapped[str | None]
    refusal: Mapped[dict[str, Any] | None]
    claimed_until: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    cleaned_at: Mapped[datetime | None]


Index("ix_uploads_unclean", Upload.expires_at, postgresql_where=Upload.cleaned_at.is_(None))


class UploadPart(Table):
    """A part that was received, and where in its file it belongs."""

    __tablename__ = "upload_parts"
    __table_args__ = (
        ForeignKeyConstraint(
            ["upload_id", "tenant_id"], ["uploads.id", "uploads.tenant_id"], ondelete="CASCADE"
        ),
    )

    upload_id: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    tenant_id: Mapped[str]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())


class UploadCount(Table):
    """How many uploads and imports a tenant began on a day (UTC), whatever became of them."""

    __tablename__ = "upload_counts"

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True
    )
    day: Mapped[date] = mapped_column(primary_key=True)
    num_uploads: Mapped[int]
