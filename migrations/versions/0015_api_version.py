"""Which dated version of the API a key is answered with where a request names none.

Expand only: an older process neither reads nor writes the column; the keys that are there, and
those that it makes, are of the one version that there is.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

WORKER_ROLE = "tenfold_worker"


def upgrade() -> None:
    op.add_column(
        "api_keys",
        sa.Column("api_version", sa.Text, server_default="2026-11-30", nullable=False),
    )
    # A worker reads keys column by column (migration 0009).
    op.execute(f"GRANT SELECT (api_version) ON api_keys TO {WORKER_ROLE}")


def downgrade() -> None:
    op.drop_column("api_keys", "api_version")
