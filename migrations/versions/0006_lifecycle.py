"""Versions' states, weighted aliases with their history, erasures, the feed of events, rollouts.

The feed is the audit log in the order of its commits: a deferred trigger gives each event its
number at the very end of its transaction, one transaction after the other, so that whoever has read
up to a number has missed nothing below it.

Expand only: what an older process writes is read as before, and an alias that it moves means what
it says.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

APP_ROLE = "tenfold_app"
TABLES = ("adapter_alias_targets", "adapter_alias_history", "adapter_erasures", "rollouts")
STATES = (
    "state IN ('verifying', 'validated', 'active', 'deprecated', 'archived', 'rejected',"
    " 'deleting', 'deleted')"
)
OLD_STATES = "state IN ('verifying', 'active', 'rejected', 'deleted')"

# Deferred: it runs when nothing is left to be locked, so that nobody waits for two locks.
PUBLISH_EVENT = """
CREATE FUNCTION publish_audit_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tenant text := current_setting('app.tenant_id', true);
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('tenfold.events', 0));
    PERFORM set_config('app.tenant_id', NEW.tenant_id, true);
    INSERT INTO public.events (seq, id, tenant_id, type, object_id, data, created_at)
    VALUES (nextval('public.events_seq'), NEW.id, NEW.tenant_id, NEW.action, NEW.target, NEW.after,
        NEW.recorded_at)
    ON CONFLICT (id) DO NOTHING;
    PERFORM set_config('app.tenant_id', coalesce(tenant, ''), true);
    RETURN NULL;
END
$$
"""
# An older process moves an alias and knows of no targets: what it says counts.
FORGET_TARGETS = """
CREATE FUNCTION forget_alias_targets() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM public.adapter_alias_targets
    WHERE adapter_id = NEW.adapter_id AND alias = NEW.alias;
    RETURN NULL;
END
$$
"""
BACKFILL_TARGETS = """
INSERT INTO adapter_alias_targets (adapter_id, alias, version_id, tenant_id, weight)
SELECT adapter_id, alias, version_id, tenant_id, 100 FROM adapter_aliases
"""
BACKFILL_HISTORY = """
INSERT INTO adapter_alias_history (id, tenant_id, adapter_id, alias, targets, actor, changed_at)
SELECT 'alc_' || substr(md5(a.adapter_id || ':' || a.alias), 1, 26), a.tenant_id, a.adapter_id,
    a.alias,
    jsonb_build_array(jsonb_build_object('version_id', v.id, 'version', 'v' || v.number,
        'weight', 100)), 'system', a.updated_at
FROM adapter_aliases a JOIN adapter_versions v ON v.id = a.version_id
"""
CERTIFY_ACTIVE = """
INSERT INTO adapter_jobs (id, tenant_id, kind, subject)
SELECT 'job_' || substr(md5(id), 1, 26), tenant_id, 'verify', id FROM adapter_versions
WHERE state = 'active'
"""


def upgrade() -> None:
    _extend_versions()
    _create_aliases()
    _create_erasures()
    _create_rollouts()
    _create_policies()
    _create_events()
    _take_in_what_is_there()


def downgrade() -> None:
    op.execute("DROP TRIGGER publish ON audit_events")
    op.execute("DROP FUNCTION publish_audit_event()")
    op.execute("DROP TRIGGER forget_targets ON adapter_aliases")
    op.execute("DROP FUNCTION forget_alias_targets()")
    op.drop_table("events")
    op.execute("DROP SEQUENCE events_seq")
    for table in reversed(TABLES):
        op.drop_table(table)
    for column in ("shadow_share", "shadow_version_id", "sticky_by"):
        op.drop_column("adapter_aliases", column)
    for column in ("certificate", "activates", "shutdown_on"):
        op.drop_column("adapter_versions", column)
    _set_states(OLD_STATES, "state <> 'deleted'")


def _set_states(states: str, is_live: str) -> None:
    op.execute("ALTER TABLE adapter_versions DROP CONSTRAINT ck_adapter_versions_state")
    op.create_check_constraint(op.f("ck_adapter_versions_state"), "adapter_versions", states)
    op.drop_index("uq_adapter_versions_live_digest", "adapter_versions")
    op.create_index(
        "uq_adapter_versions_live_digest",
        "adapter_versions",
        ["adapter_id", "digest"],
        unique=True,
        postgresql_where=sa.text(is_live),
    )


def _extend_versions() -> None:
    _set_states(STATES, "state NOT IN ('deleting', 'deleted')")
    op.add_column("adapter_versions", sa.Column("shutdown_on", sa.Date))
    op.add_column(
        "adapter_versions",
        sa.Column("activates", sa.Boolean, server_default=sa.true(), nullable=False),
    )
    op.add_column("adapter_versions", sa.Column("certificate", postgresql.JSONB))
    for column in (
        sa.Column("sticky_by", sa.Text),
        sa.Column("shadow_version_id", sa.Text),
        sa.Column("shadow_share", sa.SmallInteger),
    ):
        op.add_column("adapter_aliases", column)
    op.create_foreign_key(
        op.f("fk_adapter_aliases_shadow_version_id_adapter_id_tenant_id"),
        "adapter_aliases",
        "adapter_versions",
        ["shadow_version_id", "adapter_id", "tenant_id"],
        ["id", "adapter_id", "tenant_id"],
    )


def _at(name: str, *, nullable: bool = False, is_now: bool = True) -> sa.Column[object]:
    default = sa.func.now() if is_now and not nullable else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=nullable)


def _adapter_key() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], ondelete="CASCADE"
    )


def _version_key(column: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column, "adapter_id", "tenant_id"],
        ["adapter_versions.id", "adapter_versions.adapter_id", "adapter_versions.tenant_id"],
    )


def _create_aliases() -> None:
    op.create_table(
        "adapter_alias_targets",
        sa.Column("adapter_id", sa.Text, primary_key=True),
        sa.Column("alias", sa.Text, primary_key=True),
        sa.Column("version_id", sa.Text, primary_key=True, index=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("weight", sa.SmallInteger, nullable=False),
        sa.ForeignKeyConstraint(
            ["adapter_id", "alias"],
            ["adapter_aliases.adapter_id", "adapter_aliases.alias"],
            ondelete="CASCADE",
        ),
        _adapter_key(),
        _version_key("version_id"),
        sa.CheckConstraint("weight BETWEEN 1 AND 100", name="weight"),
    )
    op.create_table(
        "adapter_alias_history",
        sa.Column("seq", sa.BigInteger, sa.Identity(), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("adapter_id", sa.Text, nullable=False),
        sa.Column("alias", sa.Text, nullable=False),
        sa.Column("targets", postgresql.JSONB, nullable=False),
        sa.Column("sticky_by", sa.Text),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("restores", sa.Text),
        _at("changed_at"),
        _adapter_key(),
    )
    op.create_index(
        "ix_adapter_alias_history_alias", "adapter_alias_history", ["adapter_id", "alias", "seq"]
    )
    op.execute(FORGET_TARGETS)
    op.execute(
        "CREATE TRIGGER forget_targets AFTER UPDATE ON adapter_aliases"
        " FOR EACH ROW EXECUTE FUNCTION forget_alias_targets()"
    )


def _create_erasures() -> None:
    op.create_table(
        "adapter_erasures",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("version_ids", postgresql.ARRAY(sa.Text), nullable=False),
        sa.Column("engines", postgresql.JSONB, nullable=False),
        _at("erased_at", is_now=False),
    )
    op.create_index("ix_adapter_erasures_tenant_id", "adapter_erasures", ["tenant_id", "id"])


def _create_rollouts() -> None:
    op.create_table(
        "rollouts",
        sa.Column("id", sa.Text, primary_key=True),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("tenant_id", "adapter_id", "alias", "from_version_id", "to_version_id")
        ),
        sa.Column("ladder", postgresql.ARRAY(sa.SmallInteger), nullable=False),
        sa.Column("soak_s", sa.Integer, nullable=False),
        sa.Column("gates", postgresql.JSONB, nullable=False),
        sa.Column("on_fail", sa.Text, nullable=False),
        sa.Column("sticky_by", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("step", sa.SmallInteger, server_default=sa.text("0"), nullable=False),
        _at("step_since"),
        _at("paused_at", nullable=True),
        _at("due_at"),
        sa.Column("verdict", postgresql.JSONB),
        _at("created_at"),
        _at("finished_at", nullable=True),
        _adapter_key(),
        _version_key("from_version_id"),
        _version_key("to_version_id"),
        sa.CheckConstraint(
            "state IN ('running', 'paused', 'succeeded', 'rolled_back', 'cancelled')", name="state"
        ),
    )
    op.create_index(
        "uq_rollouts_open_alias",
        "rollouts",
        ["adapter_id", "alias"],
        unique=True,
        postgresql_where=sa.text("state IN ('running', 'paused')"),
    )
    op.create_index(
        "ix_rollouts_due", "rollouts", ["due_at"], postgresql_where=sa.text("state = 'running'")
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
    # A worker sees which rollouts are due, of whichever tenant, as it sees jobs.
    op.execute(
        "CREATE POLICY worker ON rollouts FOR SELECT"
        " USING (current_setting('app.scope', true) = 'worker')"
    )


def _create_events() -> None:
    op.execute("CREATE SEQUENCE events_seq")
    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("object_id", sa.Text, nullable=False),
        sa.Column("data", sa.Text),
        _at("created_at", is_now=False),
    )
    op.execute("ALTER TABLE events ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE events FORCE ROW LEVEL SECURITY")
    op.execute(
        "CREATE POLICY tenant ON events USING (tenant_id = current_setting('app.tenant_id', true))"
    )
    op.execute(
        "CREATE POLICY operator ON events FOR SELECT"
        " USING (current_setting('app.scope', true) = 'operator')"
    )
    op.execute(f"GRANT SELECT ON events TO {APP_ROLE}")
    op.execute(PUBLISH_EVENT)
    op.execute("REVOKE ALL ON FUNCTION publish_audit_event() FROM PUBLIC")
    op.execute(
        "CREATE CONSTRAINT TRIGGER publish AFTER INSERT ON audit_events"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION publish_audit_event()"
    )


def _take_in_what_is_there() -> None:
    """Aliases of before point where they did.

    An owner that is no superuser is bound by the policies too: for this they are not forced.
    """
    tables = ("adapter_aliases", "adapter_versions", "adapter_alias_targets", "adapter_jobs")
    for table in (*tables, "adapter_alias_history"):
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    op.execute(BACKFILL_TARGETS)
    op.execute(BACKFILL_HISTORY)
    op.execute(CERTIFY_ACTIVE)
    for table in (*tables, "adapter_alias_history"):
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
