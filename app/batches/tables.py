"""The tables of batches, as SQLAlchemy maps them; migration 0007 makes them.

Knows nothing of how a batch is run. Invariant: no body is here in clear: a line's answer is sealed
with the batch's own key (`wrapped_key`), under the line's number.
"""

from __future__ import annotations

from datetime import datetime
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


class Batch(Table):
    """validating -> failed | in_progress -> finalizing -> completed | expired | cancelled.

    `cancelling` comes in between where its tenant has asked for it. Counts and tokens are those of
    the lines that have been written down.
    """

    __tablename__ = "batches"
    __table_args__ = (
        UniqueConstraint("id", "tenant_id"),
        CheckConstraint(
            "status IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed',"
            " 'expired', 'cancelling', 'cancelled')",
            name="status",
        ),
        Index("ix_batches_tenant_id_id", "tenant_id", "id"),
        Index("ix_batches_input_file_id", "input_file_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    key_id: Mapped[str]
    endpoint: Mapped[str]
    input_file_id: Mapped[str]
    output_file_id: Mapped[str | None]
    error_file_id: Mapped[str | None]
    output_expires_after_s: Mapped[int | None]
    status: Mapped[str] = mapped_column(server_default="validating")
    model: Mapped[str | None]
    labels: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    errors: Mapped[list[dict[str, Any]] | None]
    wrapped_key: Mapped[bytes]
    num_total: Mapped[int] = mapped_column(server_default="0")
    num_completed: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")
    input_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    output_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """Of the output."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]


class BatchClaim(Table):
    """A batch that has not ended, and which worker has it: until `claimed_until`, unless renewed.

    Any worker sees these rows, of all tenants, and nothing else of a batch. `num_claims` tells one
    worker's turn from the next.
    """

    __tablename__ = "batch_claims"
    __table_args__ = (
        ForeignKeyConstraint(
            ["batch_id", "tenant_id"], ["batches.id", "batches.tenant_id"], ondelete="CASCADE"
        ),
        Index("ix_batch_claims_tenant_id", "tenant_id"),
        Index("ix_batch_claims_claimed_until", "claimed_until"),
    )

    batch_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    claimed_by: Mapped[str | None]
    claimed_until: Mapped[datetime] = mapped_column(server_default=func.now())
    num_claims: Mapped[int] = mapped_column(server_default="0")


class BatchLine(Table):
    """The answer to one line (`number`: from 1): written once, and never changed."""

    __tablename__ = "batch_lines"
    __table_args__ = (
        ForeignKeyConstraint(
            ["batch_id", "tenant_id"], ["batches.id", "batches.tenant_id"], ondelete="CASCADE"
        ),
    )

    batch_id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    tenant_id: Mapped[str]
    is_error: Mapped[bool]
    sealed: Mapped[bytes]
