"""How much of what a batch's lines were answered with is reasoning.

Expand only: an older process neither reads nor writes the column, and what it adds up is without.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "batches",
        sa.Column("reasoning_tokens", sa.BigInteger, server_default=sa.text("0"), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("batches", "reasoning_tokens")
