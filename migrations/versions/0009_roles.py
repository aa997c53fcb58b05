"""A database role of its own for workers, and the answers that idempotent requests are given again.

`tenfold_worker` may do with tenants' objects what the application may, and no more; of tenants,
plans and prices it may read, and of API keys not what they are known by: so that whoever takes over
a worker makes no tenant, no plan and no key, and learns nothing to try keys against. What it sees
of all tenants at once are jobs and the ledger, in their scopes; in an operator's it sees nothing.

Grants follow those of `tenfold_app` as they are here: a later table grants to both roles itself.

Expand only: `tenfold_app` keeps what workers need that were started before there was this role.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

APP_ROLE = "tenfold_app"
WORKER_ROLE = "tenfold_worker"
OPERATORS_TABLES = ("tenants", "plans", "prices", "audit_heads", "events")
"""Where an operator's scope shows rows of all tenants."""

# Two databases of one cluster may be migrated at once, hence the exception handler.
CREATE_ROLE = f"""
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{WORKER_ROLE}') THEN
        CREATE ROLE {WORKER_ROLE} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
WHEN insufficient_privilege THEN
    RAISE EXCEPTION 'this role may create no roles: create {WORKER_ROLE} and migrate again'
        USING HINT = 'CREATE ROLE {WORKER_ROLE} LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD ...';
END
$$
"""
GRANT_TABLES = f"""
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT c.oid::regclass AS relation, p.privilege
        FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p(privilege)
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')
            AND c.relname NOT IN ('api_keys', 'idempotent_answers')
            AND (p.privilege = 'SELECT' OR c.relname NOT IN ('tenants', 'plans', 'prices'))
            AND has_table_privilege('{APP_ROLE}', c.oid, p.privilege)
    LOOP
        EXECUTE format('GRANT %s ON %s TO {WORKER_ROLE}', found.privilege, found.relation);
    END LOOP;
    FOR found IN
        SELECT c.oid::regclass AS relation FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace
            AND CASE c.relkind  -- else the planner may ask it of what is none
                WHEN 'S' THEN has_sequence_privilege('{APP_ROLE}', c.oid, 'USAGE') ELSE false END
    LOOP
        EXECUTE format('GRANT USAGE ON SEQUENCE %s TO {WORKER_ROLE}', found.relation);
    END LOOP;
END
$$
"""
# These read what a key is known by. A policy is evaluated by whoever asks, so that it may bind
# nobody who may not read that; the function that looks keys up has its owner's rights.
NARROW_PRESENTED = f"""
DO $$
DECLARE
    looks_up regrole := (SELECT proowner::regrole FROM pg_proc
        WHERE oid = 'enter_tenant_of_key(text)'::regprocedure);
BEGIN
    EXECUTE format('ALTER POLICY presented ON api_keys TO {APP_ROLE}, %s', looks_up);
    EXECUTE format('ALTER POLICY presented ON tenants TO {APP_ROLE}, %s', looks_up);
END
$$
"""
GRANT_KEYS = f"""
DO $$
BEGIN
    EXECUTE (
        SELECT format('GRANT SELECT (%s) ON api_keys TO {WORKER_ROLE}',
            string_agg(quote_ident(attname), ', ' ORDER BY attnum))
        FROM pg_attribute
        WHERE attrelid = 'api_keys'::regclass AND attnum > 0 AND NOT attisdropped
            AND attname <> 'key_hash'
    );
END
$$
"""


def upgrade() -> None:
    _create_answers()
    op.execute(CREATE_ROLE)
    op.execute(f"GRANT USAGE ON SCHEMA public TO {WORKER_ROLE}")
    op.execute(GRANT_TABLES)
    op.execute(GRANT_KEYS)
    op.execute(NARROW_PRESENTED)
    op.execute(f"GRANT SELECT (expires_at), DELETE ON idempotent_answers TO {WORKER_ROLE}")
    op.execute(f"GRANT EXECUTE ON FUNCTION ensure_request_partitions(integer) TO {WORKER_ROLE}")
    for table in OPERATORS_TABLES:
        op.execute(
            f"CREATE POLICY no_operator ON {table} AS RESTRICTIVE TO {WORKER_ROLE}"
            " USING (current_setting('app.scope', true) IS DISTINCT FROM 'operator')"
        )


def downgrade() -> None:
    for table in ("api_keys", "tenants"):
        op.execute(f"ALTER POLICY presented ON {table} TO PUBLIC")
    for table in OPERATORS_TABLES:
        op.execute(f"DROP POLICY no_operator ON {table}")
    # The role belongs to the whole cluster and may serve other databases: it stays.
    for kind in ("TABLES", "SEQUENCES", "FUNCTIONS"):
        op.execute(f"REVOKE ALL ON ALL {kind} IN SCHEMA public FROM {WORKER_ROLE}")
    op.execute(f"REVOKE USAGE ON SCHEMA public FROM {WORKER_ROLE}")
    op.drop_table("idempotent_answers")


def _create_answers() -> None:
    op.create_table(
        "idempotent_answers",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("key_hash", sa.Text, primary_key=True),
        sa.Column("request_hash", sa.Text, nullable=False),
        sa.Column("status", sa.SmallInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_idempotent_answers_expires_at", "idempotent_answers", ["expires_at"])
    op.execute("ALTER TABLE idempotent_answers ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE idempotent_answers FORCE ROW LEVEL SECURITY")
    for action in ("SELECT", "DELETE"):  # to be removed, by whoever comes
        op.execute(
            f"CREATE POLICY expired_{action.lower()} ON idempotent_answers FOR {action}"
            " USING (expires_at < now())"
        )
    # A setting of its own, so that looking here changes nobody's scope.
    op.execute(
        "CREATE POLICY owner ON idempotent_answers"
        " USING (owner = current_setting('app.idempotency_owner', true))"
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON idempotent_answers TO {APP_ROLE}")
