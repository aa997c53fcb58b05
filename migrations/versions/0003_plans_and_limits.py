"""Plans, limits of tenants, keys and adapters, what each has spent, and why a request was admitted.

A limit that is absent from `limits` is inherited, and one that is null is none at all: one column
of its own per limit could not tell them apart. `spend` is kept by whoever writes the ledger, in the
same transaction; `spend_version` grows with every such transaction, so that of two readings of it
the later one is known. The sequence is in a dump, as a transaction's id would not be.

Expand only: `tenants.concurrency` and `queue_depth` stay for older processes, and are written.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

APP_ROLE = "tenfold_app"
LIMITED_TABLES = ("tenants", "api_keys", "adapters")
COPY_LIMITS = """
UPDATE tenants SET limits = jsonb_strip_nulls(
    jsonb_build_object('concurrency', concurrency, 'queue_depth', queue_depth))
"""


def upgrade() -> None:
    _create_plans()
    for table in LIMITED_TABLES:
        op.add_column(table, _limits())
    op.execute(COPY_LIMITS)
    op.add_column("api_keys", sa.Column("counted_as", sa.Text))
    op.add_column("tenants", sa.Column("plan_id", sa.Text))
    op.create_foreign_key("fk_tenants_plan_id", "tenants", "plans", ["plan_id"], ["id"])
    op.create_index("ix_tenants_plan_id", "tenants", ["plan_id"])
    for column in _share():
        op.add_column("tenants", column)
    op.add_column("requests", sa.Column("decision", postgresql.JSONB))
    _create_spend()
    _create_policies()


def downgrade() -> None:
    op.execute("DROP POLICY assigned ON plans")  # it reads tenants.plan_id, which goes first
    op.drop_table("spend")
    op.execute("DROP SEQUENCE spend_version")
    op.drop_column("requests", "decision")
    for column in ("allows_priority", "reserved_share", "weight", "plan_id"):
        op.drop_column("tenants", column)
    op.drop_column("api_keys", "counted_as")
    for table in LIMITED_TABLES:
        op.drop_column(table, "limits")
    op.drop_table("plans")


def _limits() -> sa.Column[object]:
    return sa.Column(
        "limits", postgresql.JSONB, server_default=sa.text("'{}'::jsonb"), nullable=False
    )


def _share() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("weight", sa.Float),
        sa.Column("reserved_share", sa.Float),
        sa.Column("allows_priority", sa.Boolean),
    )


def _create_plans() -> None:
    op.create_table(
        "plans",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        _limits(),
        *_share(),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
    )


def _create_spend() -> None:
    op.create_table(
        "spend",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("num_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_nanos", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.execute("CREATE SEQUENCE spend_version")
    op.execute(f"GRANT USAGE ON SEQUENCE spend_version TO {APP_ROLE}")


def _create_policies() -> None:
    for table in ("plans", "spend"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(
        "CREATE POLICY operator ON plans USING (current_setting('app.scope', true) = 'operator')"
    )
    # Whoever sees a tenant sees its plan.
    op.execute(
        "CREATE POLICY assigned ON plans FOR SELECT USING (id IN (SELECT plan_id FROM tenants))"
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON plans TO {APP_ROLE}")
    op.execute(
        "CREATE POLICY tenant ON spend FOR SELECT"
        " USING (tenant_id = current_setting('app.tenant_id', true))"
    )
    op.execute(
        "CREATE POLICY ledger ON spend USING (current_setting('app.scope', true) = 'ledger')"
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON spend TO {APP_ROLE}")
