"""Brings the registry's schema up to date: `python -m app.migrate`.

Knows nothing of the tables. Invariant: it runs as the database's owner, which the application
itself never does. Blocking: in a coroutine, call it from a thread. With `TENFOLD_MIGRATION_WAIT_S`
in the environment it waits so long for a server that is being started; with
`TENFOLD_WORKER_PASSWORD` it gives that password to the workers' role; `TENFOLD_SEPARATE_ROLES` says
whether what only workers need is that role's alone (true) or also the application's (false).
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from pathlib import Path

import asyncpg
import structlog
from alembic import command
from alembic.config import Config

import migrations
from app.database_url import connect
from app.job_rights_repository import set_job_rights
from app.logging import configure_logging

log = structlog.get_logger()

CONNECT_TIMEOUT_S = 5.0
RETRY_S = 0.5
_ALTER_WORKER = "SELECT format('ALTER ROLE tenfold_worker PASSWORD %L', $1::text)"
# What a server that is being started says, or what is said in its stead.
_NOT_YET = (
    OSError,
    TimeoutError,
    asyncpg.CannotConnectNowError,
    asyncpg.ConnectionDoesNotExistError,
)


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


async def wait_for_database(url: str, timeout_s: float) -> None:
    """Return when the database accepts this role. Raises what it said last, after `timeout_s`.

    A refusal (a wrong password, no such database, a strange certificate) is raised at once.
    """
    give_up_at = time.monotonic() + timeout_s
    while True:
        try:
            connection = await connect(url, timeout_s=CONNECT_TIMEOUT_S)
            await connection.close()
            return
        except ssl.SSLCertVerificationError:
            raise
        except _NOT_YET as error:
            if time.monotonic() >= give_up_at:
                raise
            log.info("registry_awaited", error=type(error).__name__)
            await asyncio.sleep(RETRY_S)


async def set_worker_password(owner_url: str, password: str) -> None:
    """Of a role that migration 0009 made without one."""
    connection = await connect(owner_url, timeout_s=CONNECT_TIMEOUT_S)
    try:
        # A statement of this kind takes no parameters: Postgres itself quotes what goes into it.
        await connection.execute(await connection.fetchval(_ALTER_WORKER, password))
    finally:
        await connection.close()


def separate_roles(said: str | None) -> bool | None:
    """What `TENFOLD_SEPARATE_ROLES` says; None: nothing. Raises SystemExit for another word."""
    if said is None:
        return None
    if said not in ("true", "false"):
        raise SystemExit(f"TENFOLD_SEPARATE_ROLES is true or false, not {said!r}")
    return said == "true"


def main() -> None:
    configure_logging("migrate")
    owner_url = os.environ["TENFOLD_OWNER_DATABASE_URL"]
    are_separate = separate_roles(os.environ.get("TENFOLD_SEPARATE_ROLES"))
    asyncio.run(wait_for_database(owner_url, float(os.environ.get("TENFOLD_MIGRATION_WAIT_S", 0))))
    migrate(owner_url)
    if password := os.environ.get("TENFOLD_WORKER_PASSWORD"):
        asyncio.run(set_worker_password(owner_url, password))
    if are_separate is not None:
        asyncio.run(set_job_rights(owner_url, workers_alone=are_separate))
    log.info("registry_migrated")


if __name__ == "__main__":
    main()
