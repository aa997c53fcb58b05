"""A database role of its own for each kind of job; what else operators asked for.

Expand only: nothing that an older process uses is changed.
"""

from __future__ import annotations

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
