"""Resumable uploads, import jobs, and how many uploads of a day.

Parts of an upload outlive their adapter, until a worker has removed them; a trigger tells it that
they are of no use to anybody any more.

Expand only: nothing that an older process uses is changed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

APP_ROLE = "tenfold_app"
TABLES = ("uploads", "upload_parts", "upload_counts", "imports")
FOR_WORKERS = ("uploads", "imports")
# Whose adapter it was runs this, or the tables' owner where the tenant itself is deleted: both are
# in the tenant's scope.
EXPIRE_UPLOADS = """
CREATE FUNCTION expire_uploads() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE public.uploads SET expires_at = now()
        WHERE tenant_id = OLD.tenant_id AND adapter_id = OLD.id AND cleaned_at IS NULL;
    RETURN NULL;
END
$$
"""


def upgrade() -> None:
    _create_uploads()
    _create_imports()
    _create_policies()
    op.execute(EXPIRE_UPLOADS)
    op.execute(
        "CREATE TRIGGER expire_uploads AFTER DELETE ON adapters"
        " FOR EACH ROW EXECUTE FUNCTION expire_uploads()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER expire_uploads ON adapters")
    op.execute("DROP FUNCTION expire_uploads()")
    for table in ("imports", "upload_counts", "upload_parts", "uploads"):
        op.drop_table(table)


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True))


def _now(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False)


def _create_uploads() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("adapter_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, server_default=sa.text("'uploading'"), nullable=False),
        sa.Column("files", postgresql.JSONB, nullable=False),
        sa.Column("part_bytes", sa.Integer, nullable=False),
        sa.Column("version_id", sa.Text),
        sa.Column("refusal", postgresql.JSONB),
        _time("claimed_until"),
        _now("created_at"),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        _time("ended_at"),
        _time("cleaned_at"),
        sa.UniqueConstraint("id", "tenant_id"),
        sa.CheckConstraint(
            "state IN ('uploading', 'completing', 'completed', 'rejected', 'cancelled', 'expired')",
            name="state",
        ),
    )
    op.create_index("ix_uploads_adapter_id", "uploads", ["tenant_id", "adapter_id", "id"])
    op.create_index(
        "ix_uploads_unclean",
        "uploads",
        ["expires_at"],
        postgresql_where=sa.text("cleaned_at IS NULL"),
    )
    op.create_table(
        "upload_parts",
        sa.Column("upload_id", sa.Text, primary_key=True),
        sa.Column("path", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        _now("received_at"),
        sa.ForeignKeyConstraint(
            ["upload_id", "tenant_id"], ["uploads.id", "uploads.tenant_id"], ondelete="CASCADE"
        ),
    )
    op.create_table(
        "upload_counts",
        sa.Column(
            "tenant_id",
            sa.Text,
            sa.ForeignKey("tenants.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("num_uploads", sa.Integer, nullable=False),
    )


def _create_imports() -> None:
    op.create_table(
        "imports",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("adapter_id", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("revision", sa.Text),
        sa.Column("sha256", sa.Text),
        sa.Column("sealed_token", sa.LargeBinary),
        sa.Column("state", sa.Text, server_default=sa.text("'queued'"), nullable=False),
        sa.Column("bytes_done", sa.BigInteger, server_default=sa.text("0"), nullable=False),
        sa.Column("bytes_total", sa.BigInteger),
        sa.Column("attempts", sa.SmallInteger, server_default=sa.text("0"), nullable=False),
        _time("lease_until"),
        sa.Column("version_id", sa.Text),
        sa.Column("error", postgresql.JSONB),
        _now("created_at"),
        _time("started_at"),
        _time("ended_at"),
        sa.ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], ondelete="CASCADE"
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="state"
        ),
        sa.CheckConstraint(
            "ended_at IS NULL OR sealed_token IS NULL", name="token_is_gone_at_the_end"
        ),
    )
    op.create_index("ix_imports_adapter_id", "imports", ["tenant_id", "adapter_id", "id"])
    op.create_index(
        "ix_imports_open",
        "imports",
        ["created_at"],
        postgresql_where=sa.text("ended_at IS NULL"),
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
    # To find what is to be done. It is done in the scope of the tenant whose it is.
    for table in FOR_WORKERS:
        op.execute(
            f"CREATE POLICY worker ON {table} FOR SELECT"
            " USING (current_setting('app.scope', true) = 'worker')"
        )
