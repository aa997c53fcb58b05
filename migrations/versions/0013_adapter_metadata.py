"""What an adapter's owner says of it, for the owner's own systems.

Expand only: an older process neither reads nor writes the column; what it makes has none.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "adapters",
        sa.Column(
            "metadata", postgresql.JSONB, server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
    )


def downgrade() -> None:
    op.drop_column("adapters", "metadata")
