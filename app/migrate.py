"""Brings the registry's schema up to date: `python -m app.migrate`.

Knows nothing of the tables. Invariant: it runs as the database's owner, which the application
itself never does. Blocking: in a coroutine, call it from a thread.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config

import migrations
from app.logging import configure_logging

log = structlog.get_logger()


def alembic_config(owner_url: str) -> Config:
    """Alembic's configuration for the database that `owner_url` names."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["url"] = owner_url
    return config


def migrate(owner_url: str, revision: str = "head") -> None:
    """Upgrade to `revision`. `owner_url`: `postgresql+asyncpg://owner:...@host/db`."""
    command.upgrade(alembic_config(owner_url), revision)


def main() -> None:
    configure_logging("migrate")
    migrate(os.environ["TENFOLD_OWNER_DATABASE_URL"])
    log.info("registry_migrated")


if __name__ == "__main__":
    main()
