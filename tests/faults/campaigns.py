"""A campaign for a whole file of tests: on stub engines, or on whatever its command names.

Knows nothing of what is killed. Invariant: each has a stack and a registry of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.launcher.postgres import PostgresServer
from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import ADMIN_KEY
from tests.builders.queue_secret import QUEUE_SECRET
from tests.faults.campaign import STEP_MS, Campaign
from tests.faults.stack import Stack
from tests.fixtures.servers import new_database

SEED = 5
STUB_OPTIONS = (
    "--step-ms",
    str(STEP_MS),
    "--num-pages",
    "16",
    "--load-ms",
    "100",
    "--max-num-batched-tokens",
    "32",
)


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
    api_options: Mapping[str, str] | None = None,
) -> Iterator[Campaign]:
    """On a stack and a registry of its own. api_options: of `Stack`."""
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
        settings,
        folder / "stack",
        engine_command,
        num_engines=num_engines,
        num_apis=num_apis,
        api_options=api_options,
    ) as stack:
        adapters = _adapters(BaseSpec.from_folder(model))
        yield Campaign(stack, database.owner_url, random.Random(SEED), adapters)
    next(databases, None)


def _adapters(base: BaseSpec) -> dict[str, dict[str, bytes]]:
    return {f"bot-{rank}": adapter_files(base, rank=rank, seed=rank) for rank in (4, 9)}


@pytest.fixture(scope="module")
def stub_campaign(
    postgres: PostgresServer,
    registry_template: str,
    tiny_base_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Campaign]:
    """Eight engines without a model, so small that requests preempt each other; four API
    processes.
    """
    folder = tmp_path_factory.mktemp("faults")
    command = ("tests.stub_engine", "--model", str(tiny_base_folder), *STUB_OPTIONS)
    with campaign(
        postgres, registry_template, tiny_base_folder, folder, command, num_engines=8, num_apis=4
    ) as opened:
        yield opened
