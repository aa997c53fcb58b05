"""What a key's maker says of it, for the maker's own systems.

Expand only: an older process neither reads nor writes the column; what it makes has none.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

WORKER_ROLE = "tenfold_worker"


def upgrade() -> None:
    op.add_column(
        "api_keys",
        sa.Column(
            "metadata", postgresql.JSONB, server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
    )
    # A worker reads keys column by column (migration 0009).
    op.execute(f"GRANT SELECT (metadata) ON api_keys TO {WORKER_ROLE}")


def downgrade() -> None:
    op.drop_column("api_keys", "metadata")
