"""Accepted requests, and the ledger of what they used.

`requests` is partitioned by day. Its partitions lie in a schema of their own that the application's
role cannot enter, so that rows are reached through `requests` and its policies alone. Only their
owner can make partitions; `ensure_request_partitions` lends the worker that one right. What finds
no day of its own goes to the default partition: nothing is ever refused for want of one.

Expand only: nothing that an older process uses is changed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

APP_ROLE = "tenfold_app"
TABLES = ("requests", "request_events")
NUM_DAYS = 3

# Attached, not created in place: that would lock out everyone who reads or writes `requests`. A day
# whose rows already lie in the default partition stays there, which costs nothing but tidiness.
ENSURE_PARTITIONS = """
CREATE FUNCTION ensure_request_partitions(num_days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET lock_timeout = '1s' AS $$
DECLARE
    day date;
    partition text;
    num_made integer := 0;
BEGIN
    FOR i IN 0 .. least(num_days, 31) - 1 LOOP
        day := current_date + i;
        partition := 'requests_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('request_partitions.' || partition) IS NOT NULL;
        BEGIN
            EXECUTE format(
                'CREATE TABLE request_partitions.%I (LIKE public.requests INCLUDING ALL)',
                partition);
            EXECUTE format(
                'ALTER TABLE request_partitions.%I'
                ' ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', partition);
            EXECUTE format(
                'ALTER TABLE public.requests ATTACH PARTITION request_partitions.%I'
                ' FOR VALUES FROM (%L) TO (%L)',
                partition, day::timestamptz, (day + 1)::timestamptz);
            num_made := num_made + 1;
        EXCEPTION WHEN check_violation OR lock_not_available OR duplicate_table THEN
            RAISE NOTICE 'no partition %: %', partition, SQLERRM;
        END;
    END LOOP;
    RETURN num_made;
END
$$
"""


def upgrade() -> None:
    _create_requests()
    _create_events()
    _create_policies()
    op.execute(f"SELECT ensure_request_partitions({NUM_DAYS})")


def downgrade() -> None:
    op.execute("DROP FUNCTION ensure_request_partitions(integer)")
    for table in reversed(TABLES):
        op.drop_table(table)
    op.execute("DROP SCHEMA request_partitions")


def _create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("api_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("adapter_version_id", sa.Text),
        sa.Column("adapter_digest", sa.Text),
        sa.Column("num_prompt_tokens", sa.Integer, nullable=False),
        sa.Column("max_tokens", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, server_default=sa.text("'accepted'"), nullable=False),
        sa.PrimaryKeyConstraint("request_id", "tenant_id", "accepted_at", name="pk_requests"),
        sa.CheckConstraint("state IN ('accepted', 'ended')", name="state"),
        postgresql_partition_by="RANGE (accepted_at)",
    )
    op.create_index(
        "ix_requests_open",
        "requests",
        ["tenant_id", "request_id"],
        postgresql_where=sa.text("state = 'accepted'"),
    )
    op.execute("CREATE SCHEMA request_partitions")
    op.execute("CREATE TABLE request_partitions.requests_default PARTITION OF requests DEFAULT")
    op.execute(
        "ALTER TABLE request_partitions.requests_default"
        " ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"
    )
    op.execute(ENSURE_PARTITIONS)
    op.execute("REVOKE ALL ON FUNCTION ensure_request_partitions(integer) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION ensure_request_partitions(integer) TO {APP_ROLE}")


def _create_events() -> None:
    op.create_table(
        "request_events",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("num_prompt_tokens", sa.Integer, nullable=False),
        sa.Column("num_cached_tokens", sa.Integer, nullable=False),
        sa.Column("num_generated_tokens", sa.Integer, nullable=False),
        sa.Column("adapter_digest", sa.Text),
        sa.Column("engine_id", sa.Text),
        sa.Column("queue_ms", sa.Integer),
        sa.Column("finish_reason", sa.Text),
        sa.Column("reason_rank", sa.SmallInteger, nullable=False),
        sa.Column("reason_epoch", sa.Integer, nullable=False),
        sa.Column(
            "recorded_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.PrimaryKeyConstraint("tenant_id", "request_id", "event", name="pk_request_events"),
        sa.CheckConstraint("event IN ('checkpoint', 'final')", name="event"),
        sa.CheckConstraint("(event = 'final') = (finish_reason IS NOT NULL)", name="finish_reason"),
    )


def _create_policies() -> None:
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY tenant ON {table} FOR SELECT"
            " USING (tenant_id = current_setting('app.tenant_id', true))"
        )
        op.execute(
            f"CREATE POLICY ledger ON {table} USING (current_setting('app.scope', true) = 'ledger')"
        )
        op.execute(f"GRANT SELECT, INSERT, UPDATE ON {table} TO {APP_ROLE}")
    op.execute(
        "CREATE POLICY acceptance ON requests FOR INSERT"
        " WITH CHECK (current_setting('app.scope', true) = 'acceptance')"
    )
    # An operator names a request, not its tenant: the id shows the rows that have it.
    op.execute(
        "CREATE POLICY named ON requests FOR SELECT"
        " USING (request_id = current_setting('app.request_id', true))"
    )
