"""One watched installation for all tests here, with some traffic behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from app.launcher.postgres import PostgresServer
from app.launcher.valkey import ValkeyServer
from app.settings import Settings
from tests.builders.operator import ADMIN_KEY
from tests.builders.queue_secret import QUEUE_SECRET
from tests.chart.observability.installation import Installation, installed
from tests.faults.real_base import write_real_base
from tests.fixtures.servers import new_database

VALKEY_PASSWORD = "password-of-the-queue"


@pytest.fixture(scope="session")
def installation(
    postgres: PostgresServer, registry_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("observability")
    made = new_database(postgres, f"TEMPLATE {registry_template}")
    database = next(made)
    with ValkeyServer(folder / "valkey", password=VALKEY_PASSWORD) as valkey:
        settings = Settings(
            database_url=database.app_url,
            redis_url=valkey.url,
            queue_secret=SecretStr(QUEUE_SECRET),
            model=write_real_base(folder / "base"),
            adapter_store=str(folder / "store"),
            data_dir=folder / "data",
            key_pepper=SecretStr("pepper-of-the-tests"),
            admin_key=SecretStr(ADMIN_KEY),
        )
        with installed(settings, folder) as opened:
            yield opened
    next(made, None)
