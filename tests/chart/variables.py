"""Which variables each kind of process reads, taken from what it reads them with.

Knows nothing of who sets them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import click
import pytest
import typer
from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from app.settings import Settings, WorkerSettings
from engine import server

OURS = "TENFOLD_"
# Read where the process begins, and not from a settings class or an option.
MIGRATE = frozenset(
    {
        "TENFOLD_OWNER_DATABASE_URL",
        "TENFOLD_MIGRATION_WAIT_S",
        "TENFOLD_WORKER_PASSWORD",
        "TENFOLD_SEPARATE_ROLES",
    }
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


def become(told: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process's environment that of another, as to our own variables."""
    for name in os.environ:
        if name.startswith(OURS):
            monkeypatch.delenv(name)
    for name, value in told.items():
        if name.startswith(OURS):
            monkeypatch.setenv(name, value)


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
