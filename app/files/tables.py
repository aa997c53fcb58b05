"""The tables of files, as SQLAlchemy maps them; migration 0007 makes them.

Knows nothing of bytes: they lie sealed in a store, under `locator`, and `wrapped_key` opens them.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from app.tables import Table


class StoredFile(Table):
    """A tenant's file; its `FileRemoval` says when it goes."""

    __tablename__ = "files"
    __table_args__ = (
        CheckConstraint("purpose IN ('batch', 'user_data', 'batch_output')", name="purpose"),
        Index("ix_files_tenant_id_id", "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    filename: Mapped[str]
    purpose: Mapped[str]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    locator: Mapped[str] = mapped_column(unique=True)
    wrapped_key: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]


class FileRemoval(Table):
    """Bytes that are to go at `not_before`: planned before they are written, so that none is lost.

    No foreign key: bytes outlive their tenant.
    """

    __tablename__ = "file_removals"
    __table_args__ = (Index("ix_file_removals_not_before", "not_before"),)

    locator: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    not_before: Mapped[datetime]
