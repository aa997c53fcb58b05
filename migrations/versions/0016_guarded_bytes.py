"""Jobs that remove what an upload left which came to nothing, and imports that activate nothing.

Expand only: an older process neither reads nor writes the columns. A guard that it meets is to it
the removal of any bytes, which it does where no version needs them, and for which it leaves an
erasure that is due before: that is done when the guard is, an hour after it was made at the latest.
An import that it runs makes an active version.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "adapter_jobs",
        sa.Column("is_guard", sa.Boolean, server_default=sa.false(), nullable=False),
    )
    op.add_column(
        "imports", sa.Column("activates", sa.Boolean, server_default=sa.true(), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("imports", "activates")
    op.drop_column("adapter_jobs", "is_guard")
