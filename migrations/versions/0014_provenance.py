"""Where a version comes from, and whether warnings are to reject it.

Expand only: an older process neither reads nor writes the columns; a version that it makes has no
provenance, and an import that it runs goes by what is an error alone.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TABLES = ("adapter_versions", "imports")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(
            table, sa.Column("strict", sa.Boolean, server_default=sa.false(), nullable=False)
        )
    op.add_column("adapter_versions", sa.Column("provenance", postgresql.JSONB))
    op.add_column("imports", sa.Column("created_by", sa.Text))
    op.add_column("imports", sa.Column("license", sa.Text))


def downgrade() -> None:
    op.drop_column("imports", "license")
    op.drop_column("imports", "created_by")
    op.drop_column("adapter_versions", "provenance")
    for table in reversed(TABLES):
        op.drop_column(table, "strict")
