"""Stacks of processes for a whole file of tests, and the verdicts at the end of the run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.launcher.postgres import PostgresServer
from app.settings import Settings
from tests.builders.operator import ADMIN_KEY
from tests.builders.queue_secret import QUEUE_SECRET
from tests.faults.campaign import VERDICT, Campaign
from tests.faults.stack import Stack
from tests.fixtures.servers import new_database

SEED = 5


@contextmanager
def campaign(
    postgres: PostgresServer,
    template: str,
    model: Path,
    folder: Path,
    engine_command: Sequence[str],
    *,
    num_engines: int,
    num_apis: int,
) -> Iterator[Campaign]:
    """On a stack and a registry of its own."""
    databases = new_database(postgres, f"TEMPLATE {template} STRATEGY wal_log")
    database = next(databases)
    settings = Settings(
        database_url=database.app_url,
        redis_url="redis://none",
        queue_secret=SecretStr(QUEUE_SECRET),
        model=model,
        adapter_store=str(folder / "store"),
        data_dir=folder / "data",
        key_pepper=SecretStr("pepper-of-the-tests"),
        admin_key=SecretStr(ADMIN_KEY),
    )
    with Stack(
        settings, folder / "stack", engine_command, num_engines=num_engines, num_apis=num_apis
    ) as stack:
        yield Campaign(stack, database.owner_url, random.Random(SEED))
    next(databases, None)


@pytest.fixture(scope="module")
def stub_campaign(
    postgres: PostgresServer,
    registry_template: str,
    tiny_base_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Campaign]:
    """Four engines without a model, 20 ms a step; two API processes."""
    folder = tmp_path_factory.mktemp("faults")
    command = ("tests.stub_engine", "--step-ms", "20", "--model", str(tiny_base_folder))
    with campaign(
        postgres, registry_template, tiny_base_folder, folder, command, num_engines=4, num_apis=2
    ) as opened:
        yield opened


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The verdicts come last, wherever the tests ran."""
    lines = [
        str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == VERDICT
    ]
    if lines:
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)
