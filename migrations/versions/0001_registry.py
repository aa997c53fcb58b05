"""Tenants, keys, adapters, versions, aliases, and the walls between tenants.

Row-level security is enabled *and forced*, so that it binds the tables' owner too; a superuser is
never bound, which is why the application connects as `tenfold_app`. Policies read settings of the
transaction (`app.db`): `app.tenant_id`, `app.key_hash` and `app.scope`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APP_ROLE = "tenfold_app"
TABLES = (
    "tenants",
    "api_keys",
    "adapters",
    "adapter_versions",
    "adapter_aliases",
    "adapter_jobs",
)


def upgrade() -> None:
    _create_role()
    _create_tenants()
    _create_adapters()
    _create_policies()


def downgrade() -> None:
    op.execute("DROP POLICY presented ON tenants")  # it reads api_keys, which goes first
    for table in reversed(TABLES):
        op.drop_table(table)
    # The role belongs to the whole cluster and may serve other databases: it stays.
    op.execute(f"REVOKE USAGE ON SCHEMA public FROM {APP_ROLE}")


def _create_role() -> None:
    # Two databases of one cluster may be migrated at once, hence the exception handler.
    op.execute(
        f"""
        DO $$
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{APP_ROLE}') THEN
                CREATE ROLE {APP_ROLE} LOGIN
                    NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END
        $$
        """
    )


def _created_at() -> sa.Column[object]:
    return sa.Column(
        "created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
    )


def _create_tenants() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("slug", sa.Text, nullable=False, unique=True),
        sa.Column("external_id", sa.Text, unique=True),
        sa.Column(
            "metadata", postgresql.JSONB, server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column("concurrency", sa.Integer),
        sa.Column("queue_depth", sa.Integer),
        _created_at(),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column(
            "tenant_id",
            sa.Text,
            sa.ForeignKey("tenants.id", ondelete="CASCADE"),
            nullable=False,
            index=True,
        ),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("key_hash", sa.Text, nullable=False, unique=True),
        sa.Column("last4", sa.Text, nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text), nullable=False),
        _created_at(),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("disabled_at", sa.DateTime(timezone=True)),
    )


def _create_adapters() -> None:
    op.create_table(
        "adapters",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column(
            "tenant_id", sa.Text, sa.ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("base_model_id", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("next_number", sa.Integer, server_default=sa.text("1"), nullable=False),
        _created_at(),
        sa.UniqueConstraint("tenant_id", "name"),
        sa.UniqueConstraint("id", "tenant_id"),
    )
    _create_versions()
    op.create_table(
        "adapter_aliases",
        sa.Column("adapter_id", sa.Text, primary_key=True),
        sa.Column("alias", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("version_id", sa.Text, nullable=False, index=True),
        sa.Column(
            "updated_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["version_id", "adapter_id", "tenant_id"],
            ["adapter_versions.id", "adapter_versions.adapter_id", "adapter_versions.tenant_id"],
        ),
        sa.ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], ondelete="CASCADE"
        ),
    )
    _create_jobs()


def _create_jobs() -> None:
    op.create_table(
        "adapter_jobs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("attempts", sa.SmallInteger, server_default=sa.text("0"), nullable=False),
        sa.Column(
            "not_before", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        _created_at(),
        sa.CheckConstraint("kind IN ('verify', 'remove')", name="kind"),
    )
    op.create_index("ix_adapter_jobs_due", "adapter_jobs", ["kind", "not_before"])


def _create_versions() -> None:
    op.create_table(
        "adapter_versions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("adapter_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("locator", sa.Text, nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("files", postgresql.JSONB, nullable=False),
        sa.Column("manifest", postgresql.JSONB, nullable=False),
        sa.Column("report", postgresql.JSONB, nullable=False),
        _created_at(),
        sa.Column("activated_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("adapter_id", "number"),
        sa.UniqueConstraint("id", "adapter_id", "tenant_id"),
        sa.CheckConstraint("state IN ('verifying', 'active', 'rejected', 'deleted')", name="state"),
    )
    op.create_index(
        "uq_adapter_versions_live_digest",
        "adapter_versions",
        ["adapter_id", "digest"],
        unique=True,
        postgresql_where=sa.text("state <> 'deleted'"),
    )
    op.create_index("ix_adapter_versions_locator", "adapter_versions", ["locator"])


def _create_policies() -> None:
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        owner = "id" if table == "tenants" else "tenant_id"
        op.execute(
            f"CREATE POLICY tenant ON {table}"
            f" USING ({owner} = current_setting('app.tenant_id', true))"
        )
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {APP_ROLE}")
    op.execute(f"GRANT USAGE ON SCHEMA public TO {APP_ROLE}")
    op.execute(
        "CREATE POLICY operator ON tenants USING (current_setting('app.scope', true) = 'operator')"
    )
    # Before a key is verified its tenant is unknown: the presented key's HMAC shows that one row.
    op.execute(
        "CREATE POLICY presented ON api_keys FOR SELECT"
        " USING (key_hash = current_setting('app.key_hash', true))"
    )
    op.execute(
        "CREATE POLICY presented ON tenants FOR SELECT USING (id IN ("
        "SELECT tenant_id FROM api_keys WHERE key_hash = current_setting('app.key_hash', true)))"
    )
    op.execute(
        "CREATE POLICY worker ON adapter_jobs USING (current_setting('app.scope', true) = 'worker')"
    )
