"""Which variables each kind of process reads, taken from what it reads them with.

Knows nothing of who sets them.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer
from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from app.settings import Settings, WorkerSettings
from engine import server

OURS = "TENFOLD_"
# Read where the process begins, and not from a settings class or an option.
MIGRATE = frozenset(
    {"TENFOLD_OWNER_DATABASE_URL", "TENFOLD_MIGRATION_WAIT_S", "TENFOLD_WORKER_PASSWORD"}
)


def engine_command() -> click.Command:
    engine = typer.Typer()
    engine.command()(server.serve)
    return typer.main.get_command(engine)


def known_variables(process: str) -> frozenset[str]:
    """Of `api`, `worker`, `engine` or `migrate`."""
    if process == "migrate":
        return MIGRATE
    if process == "engine":
        return frozenset(_of_options(engine_command())) | {server.QUEUE_SECRET}
    return frozenset(_of_fields({"api": Settings, "worker": WorkerSettings}[process]))


def _of_options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter.envvar, str):
            yield parameter.envvar
        else:
            yield from parameter.envvar or ()


def _of_fields(settings: type[BaseSettings]) -> Iterator[str]:
    for name, field in settings.model_fields.items():
        alias = field.validation_alias
        if alias is None:
            yield f"{OURS}{name.upper()}"
        elif isinstance(alias, AliasChoices):
            yield from map(str, alias.choices)
        else:
            yield str(alias)
