"""`python tools/new_migration.py "add limits"`: a revision from what changed in app/tables.py.

Runs Alembic's autogenerate on a private, migrated database that is thrown away. Knows nothing of
row-level security: policies and grants are written into the revision by hand.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command

import migrations
from app.launcher.postgres import PostgresServer
from app.migrate import alembic_config, migrate


def main(message: str) -> None:
    """Write the revision to migrations/versions."""
    versions = Path(migrations.__file__).parent / "versions"
    number = 1 + len(list(versions.glob("[0-9]*.py")))
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer(Path(folder), durable=False) as server,
    ):
        migrate(server.admin_url)
        config = alembic_config(server.admin_url)
        config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
        command.revision(config, message, autogenerate=True, rev_id=f"{number:04}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
