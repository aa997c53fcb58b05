"""Files and batches, sealed under an envelope key, and their retention.

What a tenant sends and gets is in no table in clear: files' bytes lie sealed in a store, lines'
answers sealed in `batch_lines`. A worker sees, of all tenants, what waits for it and no more:
`batch_claims` (which batches have not ended) and `file_removals` (which bytes are to go); the rest
it reads and writes in the scope of the tenant concerned, as the API does. For a role of its own it
needs SELECT, INSERT, UPDATE and DELETE on the five tables here, SELECT on tenants, plans, api_keys,
prices, adapters, adapter_versions and adapter_aliases, and what acceptance and ledger need.

Expand only: nothing that an older process uses is changed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

APP_ROLE = "tenfold_app"
TABLES = ("files", "file_removals", "batches", "batch_claims", "batch_lines")
SEEN_BY_WORKERS = ("file_removals", "batch_claims")
STATUSES = (
    "'validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling',"
    " 'cancelled'"
)
TIMES = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def upgrade() -> None:
    _create_files()
    _create_batches()
    _create_claims_and_lines()
    _create_policies()


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)


def _create_files() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Text, primary_key=True),
        _tenant_id(),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("locator", sa.Text, nullable=False, unique=True),
        sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
        _created_at(),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("purpose IN ('batch', 'user_data', 'batch_output')", name="purpose"),
    )
    op.create_index("ix_files_tenant_id_id", "files", ["tenant_id", "id"])
    op.create_table(
        "file_removals",
        sa.Column("locator", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_file_removals_not_before", "file_removals", ["not_before"])


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text, primary_key=True),
        _tenant_id(),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("input_file_id", sa.Text, nullable=False),
        sa.Column("output_file_id", sa.Text),
        sa.Column("error_file_id", sa.Text),
        sa.Column("output_expires_after_s", sa.Integer),
        sa.Column("status", sa.Text, server_default=sa.text("'validating'"), nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("metadata", postgresql.JSONB),
        sa.Column("errors", postgresql.JSONB),
        sa.Column("wrapped_key", sa.LargeBinary, nullable=False),
        *(_count(name, sa.Integer) for name in ("num_total", "num_completed", "num_failed")),
        *(_count(name, sa.BigInteger) for name in ("input_tokens", "cached_tokens")),
        _count("output_tokens", sa.BigInteger),
        _created_at(),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.DateTime(timezone=True)) for name in TIMES),
        sa.UniqueConstraint("id", "tenant_id"),
        sa.CheckConstraint(f"status IN ({STATUSES})", name="status"),
    )
    op.create_index("ix_batches_tenant_id_id", "batches", ["tenant_id", "id"])
    op.create_index("ix_batches_input_file_id", "batches", ["input_file_id"])


def _create_claims_and_lines() -> None:
    op.create_table(
        "batch_claims",
        sa.Column("batch_id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("claimed_by", sa.Text),
        sa.Column(
            "claimed_until",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
        ),
        _count("num_claims", sa.Integer),
        _of_batch(),
    )
    op.create_index("ix_batch_claims_tenant_id", "batch_claims", ["tenant_id"])
    op.create_index("ix_batch_claims_claimed_until", "batch_claims", ["claimed_until"])
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("is_error", sa.Boolean, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        _of_batch(),
    )


def _create_policies() -> None:
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY tenant ON {table}"
            " USING (tenant_id = current_setting('app.tenant_id', true))"
        )
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {APP_ROLE}")
    for table in SEEN_BY_WORKERS:
        op.execute(
            f"CREATE POLICY worker ON {table} USING (current_setting('app.scope', true) = 'worker')"
        )


def _tenant_id() -> sa.Column[object]:
    return sa.Column(
        "tenant_id", sa.Text, sa.ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False
    )


def _created_at() -> sa.Column[object]:
    return sa.Column(
        "created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
    )


def _count(name: str, kind: type[sa.Integer]) -> sa.Column[object]:
    return sa.Column(name, kind, server_default=sa.text("0"), nullable=False)


def _of_batch() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["batch_id", "tenant_id"], ["batches.id", "batches.tenant_id"], ondelete="CASCADE"
    )
