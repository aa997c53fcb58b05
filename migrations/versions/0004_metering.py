"""What was used becomes what is billed: dimensions on the ledger, roll-ups, an outbox, prices.

A request's `final` event repeats what its acceptance says (when, by which key, on what), so that a
bill is read from one table. `usage_ledger` is the one place that says what of it counts. Money is
`numeric`: nothing is ever rounded before it is shown.

Expand only: what an older process writes is completed by the worker (`app.usage.jobs`).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

APP_ROLE = "tenfold_app"
TABLES = ("usage_hours", "usage_stale_hours", "usage_outbox", "prices")
DIMENSIONS = ("key_id", "adapter_id", "adapter_version_id", "base_model_id", "service_tier")
MEASURES = (
    "num_requests",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "queue_ms",
    "adapter_load_ms",
)

# The choices of one prompt share it: it counts once, with the first choice, as the client is told.
# It counts when its first token was generated: whoever leaves the queue pays for nothing.
USAGE_LEDGER = """
CREATE VIEW usage_ledger WITH (security_invoker = true) AS
SELECT tenant_id,
    request_id,
    accepted_at,
    date_trunc('hour', accepted_at, 'UTC') AS hour,
    coalesce(key_id, '') AS key_id,
    coalesce(adapter_id, '') AS adapter_id,
    coalesce(adapter_version_id, '') AS adapter_version_id,
    adapter_digest,
    coalesce(base_model_id, '') AS base_model_id,
    coalesce(service_tier, 'default') AS service_tier,
    finish_reason,
    engine_id,
    epoch,
    recorded_at,
    CASE WHEN coalesce(is_first_choice, true) AND num_generated_tokens > 0
        THEN num_prompt_tokens ELSE 0 END AS input_tokens,
    CASE WHEN coalesce(is_first_choice, true) AND num_generated_tokens > 0
        THEN least(num_cached_tokens, num_prompt_tokens) ELSE 0 END AS cached_tokens,
    num_generated_tokens AS output_tokens,
    num_reasoning_tokens AS reasoning_tokens,
    coalesce(queue_ms, 0) AS queue_ms,
    coalesce(adapter_load_ms, 0) AS adapter_load_ms
FROM request_events
WHERE event = 'final' AND accepted_at IS NOT NULL
"""
COMPLETE_EVENTS = """
UPDATE request_events e
SET accepted_at = r.accepted_at, key_id = r.key_id, adapter_version_id = r.adapter_version_id,
    service_tier = r.service_tier, is_first_choice = r.is_first_choice
FROM requests r
WHERE r.tenant_id = e.tenant_id AND r.request_id = e.request_id AND e.event = 'final'
"""


def upgrade() -> None:
    _extend_requests()
    _extend_events()
    _create_roll_ups()
    _create_outbox()
    _create_prices()
    _create_policies()
    op.execute(USAGE_LEDGER)
    op.execute(f"GRANT SELECT ON usage_ledger TO {APP_ROLE}")
    _take_in_what_is_there()


def downgrade() -> None:
    op.execute("DROP VIEW usage_ledger")
    for table in reversed(TABLES):
        op.drop_table(table)
    for table in ("requests", "request_events"):
        op.execute(f"DROP POLICY billing ON {table}")
    op.drop_index("ix_request_events_undated", "request_events")
    op.drop_index("ix_request_events_accepted_at", "request_events")
    op.drop_index("ix_request_events_tenant_id_accepted_at", "request_events")
    for column in ("accepted_at", "adapter_load_ms", "num_reasoning_tokens", "is_first_choice"):
        op.drop_column("request_events", column)
    for column in DIMENSIONS:
        op.drop_column("request_events", column)
    for column in ("adapter_id", "base_model_id", "service_tier", "is_first_choice"):
        op.drop_column("requests", column)


def _extend_requests() -> None:
    op.add_column("requests", sa.Column("adapter_id", sa.Text))
    op.add_column("requests", sa.Column("base_model_id", sa.Text))
    op.add_column(
        "requests",
        sa.Column("service_tier", sa.Text, server_default=sa.text("'default'"), nullable=False),
    )
    op.add_column(
        "requests",
        sa.Column("is_first_choice", sa.Boolean, server_default=sa.text("true"), nullable=False),
    )


def _extend_events() -> None:
    for column in DIMENSIONS:
        op.add_column("request_events", sa.Column(column, sa.Text))
    op.add_column("request_events", sa.Column("is_first_choice", sa.Boolean))
    op.add_column("request_events", sa.Column("accepted_at", sa.DateTime(timezone=True)))
    op.add_column("request_events", sa.Column("adapter_load_ms", sa.Integer))
    op.add_column(
        "request_events",
        sa.Column("num_reasoning_tokens", sa.Integer, server_default=sa.text("0"), nullable=False),
    )
    op.create_index(
        "ix_request_events_tenant_id_accepted_at",
        "request_events",
        ["tenant_id", "accepted_at"],
        postgresql_where=sa.text("event = 'final'"),
    )
    # For all tenants at once: rows lie about in the order of their time, and BRIN costs nothing.
    op.create_index(
        "ix_request_events_accepted_at", "request_events", ["accepted_at"], postgresql_using="brin"
    )
    op.create_index(
        "ix_request_events_undated",
        "request_events",
        ["recorded_at"],
        postgresql_where=sa.text("event = 'final' AND accepted_at IS NULL"),
    )


def _create_roll_ups() -> None:
    op.create_table(
        "usage_hours",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in DIMENSIONS),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in MEASURES),
        sa.PrimaryKeyConstraint("tenant_id", "hour", *DIMENSIONS, name="pk_usage_hours"),
    )
    op.create_index("ix_usage_hours_hour", "usage_hours", ["hour"])
    op.create_table(
        "usage_stale_hours",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "hour", name="pk_usage_stale_hours"),
    )
    op.create_index("ix_usage_stale_hours_hour", "usage_stale_hours", ["hour"])


def _create_outbox() -> None:
    op.create_table(
        "usage_outbox",
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer, server_default=sa.text("1"), nullable=False),
        sa.Column("delivered_revision", sa.Integer, server_default=sa.text("0"), nullable=False),
        sa.Column("delivered", postgresql.JSONB),
        sa.Column("attempts", sa.Integer, server_default=sa.text("0"), nullable=False),
        sa.Column(
            "not_before", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.PrimaryKeyConstraint("tenant_id", "request_id", name="pk_usage_outbox"),
    )
    op.create_index(
        "ix_usage_outbox_due",
        "usage_outbox",
        ["not_before"],
        postgresql_where=sa.text("revision > delivered_revision"),
    )


def _create_prices() -> None:
    price = sa.Numeric(18, 6)
    op.create_table(
        "prices",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text),
        sa.Column("base_model_id", sa.Text, nullable=False),
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("input_price", price, nullable=False),
        sa.Column("cached_price", price, nullable=False),
        sa.Column("output_price", price, nullable=False),
        sa.Column("effective_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.UniqueConstraint(
            "base_model_id",
            "tenant_id",
            "effective_at",
            name="uq_prices_base_model_id_tenant_id_effective_at",
            postgresql_nulls_not_distinct=True,
        ),
        # An hour has one price: what was rolled up by the hour can be priced exactly.
        sa.CheckConstraint(
            "effective_at = date_trunc('hour', effective_at, 'UTC')", name="effective_at"
        ),
        sa.CheckConstraint("least(input_price, cached_price, output_price) >= 0", name="price"),
    )


def _create_policies() -> None:
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {APP_ROLE}")
    for table in ("requests", "request_events", *TABLES):
        op.execute(
            f"CREATE POLICY billing ON {table} FOR SELECT"
            " USING (current_setting('app.scope', true) = 'billing')"
        )
    for table in ("usage_hours", "usage_stale_hours", "usage_outbox"):
        op.execute(
            f"CREATE POLICY tenant ON {table} FOR SELECT"
            " USING (tenant_id = current_setting('app.tenant_id', true))"
        )
        op.execute(
            f"CREATE POLICY ledger ON {table} USING (current_setting('app.scope', true) = 'ledger')"
        )
    # A price without a tenant is everybody's.
    op.execute(
        "CREATE POLICY tenant ON prices FOR SELECT USING (current_setting('app.tenant_id', true)"
        " <> '' AND coalesce(tenant_id, current_setting('app.tenant_id', true))"
        " = current_setting('app.tenant_id', true))"
    )
    op.execute(
        "CREATE POLICY operator ON prices USING (current_setting('app.scope', true) = 'operator')"
    )
    op.execute(
        "CREATE POLICY ledger ON prices FOR SELECT"
        " USING (current_setting('app.scope', true) = 'ledger')"
    )


def _take_in_what_is_there() -> None:
    """An owner that is no superuser is bound by the policies too, hence the scope."""
    op.execute("SELECT set_config('app.scope', 'ledger', true)")
    op.execute(COMPLETE_EVENTS)
    op.execute(
        "INSERT INTO usage_stale_hours SELECT DISTINCT tenant_id, hour FROM usage_ledger"
        " ORDER BY 1, 2"
    )
    op.execute(
        "INSERT INTO usage_outbox (tenant_id, request_id)"
        " SELECT tenant_id, request_id FROM usage_ledger"
    )
    op.execute("SELECT set_config('app.scope', '', true)")
