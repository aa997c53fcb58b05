"""Suspended tenants, what a tenant and a key may call, rotated keys, and the audit log.

The audit log takes new rows and lets none be changed, whoever asks; only a superuser who disables
the triggers can, and then the chain shows it.

Expand only: nothing that an older process uses is changed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

APP_ROLE = "tenfold_app"
TABLES = ("audit_events", "audit_heads")

# The first look-up of a request is the only one without a tenant, and all that it gives away is
# whose key this is: the transaction goes on in that tenant's scope, or in none.
ENTER_TENANT_OF_KEY = """
CREATE FUNCTION enter_tenant_of_key(presented text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found text;
BEGIN
    PERFORM set_config('app.scope', '', true), set_config('app.request_id', '', true),
        set_config('app.tenant_id', '', true), set_config('app.key_hash', presented, true);
    SELECT tenant_id INTO found FROM public.api_keys WHERE key_hash = presented;
    PERFORM set_config('app.key_hash', '', true),
        set_config('app.tenant_id', coalesce(found, ''), true);
    RETURN found;
END
$$
"""
REFUSE_CHANGE = """
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'insufficient_privilege';
END
$$
"""


def upgrade() -> None:
    _add_columns()
    _create_audit()
    _create_functions()


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
    op.execute("DROP FUNCTION refuse_audit_change()")
    op.execute("DROP FUNCTION enter_tenant_of_key(text)")
    for column in ("created_by", "replaced_by", "allowed_models"):
        op.drop_column("api_keys", column)
    op.drop_constraint(op.f("ck_tenants_retention"), "tenants")
    for column in ("prompt_retention_days", "stores_prompts", "allowed_bases", "suspended_at"):
        op.drop_column("tenants", column)


def _add_columns() -> None:
    for tenant_column in (
        sa.Column("suspended_at", sa.DateTime(timezone=True)),
        sa.Column("allowed_bases", postgresql.ARRAY(sa.Text)),
        sa.Column("stores_prompts", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("prompt_retention_days", sa.Integer),
    ):
        op.add_column("tenants", tenant_column)
    op.create_check_constraint(
        op.f("ck_tenants_retention"),
        "tenants",
        "stores_prompts = (prompt_retention_days IS NOT NULL)",
    )
    for key_column in (
        sa.Column("allowed_models", postgresql.ARRAY(sa.Text)),
        sa.Column("replaced_by", sa.Text),
        sa.Column("created_by", sa.Text),
    ):
        op.add_column("api_keys", key_column)


def _create_audit() -> None:
    op.create_table(
        "audit_events",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.Column("mac", sa.Text, nullable=False),
    )
    op.create_table(
        "audit_heads",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("mac", sa.Text, nullable=False),
        sa.Column("seal", sa.Text, nullable=False),
    )
    privileges = {"audit_events": "SELECT, INSERT", "audit_heads": "SELECT, INSERT, UPDATE"}
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY tenant ON {table}"
            " USING (tenant_id = current_setting('app.tenant_id', true))"
        )
        op.execute(f"GRANT {privileges[table]} ON {table} TO {APP_ROLE}")
    # To go through all chains, those of deleted tenants too, without their content.
    op.execute(
        "CREATE POLICY operator ON audit_heads FOR SELECT"
        " USING (current_setting('app.scope', true) = 'operator')"
    )


def _create_functions() -> None:
    op.execute(ENTER_TENANT_OF_KEY)
    op.execute("REVOKE ALL ON FUNCTION enter_tenant_of_key(text) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION enter_tenant_of_key(text) TO {APP_ROLE}")
    op.execute(REFUSE_CHANGE)
    op.execute(
        "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_events"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
    )
    op.execute(
        "CREATE TRIGGER append_only BEFORE DELETE OR TRUNCATE ON audit_heads"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
    )
