"""Golden prompts of rollouts, bytes of deleted versions that are kept for a while, and imports that
name a credential of the workers' own.

Prompts are sealed while their rollout is open. Expand only: an older process neither reads nor
writes the columns. Where only older workers run, a rollout with golden prompts stands still, and
bytes are removed after the drain, and an import is made without its credential.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("sealed_golden", sa.LargeBinary))
    op.add_column("rollouts", sa.Column("golden_due_at", sa.DateTime(timezone=True)))
    op.add_column("rollouts", sa.Column("golden_results", postgresql.JSONB))
    op.create_index(
        "ix_rollouts_golden_due",
        "rollouts",
        ["golden_due_at"],
        postgresql_where=sa.text("golden_due_at IS NOT NULL"),
    )
    op.add_column("imports", sa.Column("credential_ref", sa.Text))
    op.add_column("adapter_jobs", sa.Column("retain_until", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("adapter_jobs", "retain_until")
    op.drop_column("imports", "credential_ref")
    op.drop_index("ix_rollouts_golden_due", "rollouts")
    for name in ("golden_results", "golden_due_at", "sealed_golden"):
        op.drop_column("rollouts", name)
