"""Rolling restarts of everything under load: no request is lost, and no stream truncated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.launcher.postgres import PostgresServer
from app.settings import Settings
from tests.builders.operator import ADMIN_KEY
from tests.builders.queue_secret import QUEUE_SECRET
from tests.chart.rolling import (
    BalancedCampaign,
    balanced_campaign,
    kill_api,
    replace_apis,
    replace_engines,
    replace_worker,
)
from tests.faults.campaign import Recorder, amount, tell
from tests.fixtures.servers import new_database

pytestmark = pytest.mark.timeout(3600)

RESTARTS = {  # of API processes, of engines, of the worker
    "few": (20, 30, 2),
    "many": (50, 50, 5),
    "soak": (500, 500, 50),
}


@pytest.fixture(scope="module")
def rolled(
    postgres: PostgresServer,
    registry_template: str,
    tiny_base_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[BalancedCampaign]:
    folder = tmp_path_factory.mktemp("rolling")
    databases = new_database(postgres, f"TEMPLATE {registry_template} STRATEGY wal_log")
    database = next(databases)
    settings = Settings(
        database_url=database.app_url,
        redis_url="redis://none",
        queue_secret=SecretStr(QUEUE_SECRET),
        model=tiny_base_folder,
        adapter_store=str(folder / "store"),
        data_dir=folder / "data",
        key_pepper=SecretStr("pepper-of-the-tests"),
        admin_key=SecretStr(ADMIN_KEY),
    )
    with balanced_campaign(settings, database.owner_url, folder) as campaign:
        yield campaign
    next(databases, None)


async def test_a_roll_out_of_everything_loses_no_request_and_truncates_no_stream(
    rolled: BalancedCampaign, record_property: Recorder
) -> None:
    stack, asked = rolled.stack, rolled.questions()
    num_apis, num_engines, num_workers = RESTARTS[amount()]
    answers = await rolled.undisturbed(asked)

    async def roll_out() -> None:
        await asyncio.gather(
            replace_apis(stack, rolled.balancer, num_apis),
            replace_engines(stack, num_engines),
            replace_worker(stack, num_workers),
        )

    verdict = await rolled.run(asked, answers, lambda _: roll_out())
    what = f"{num_apis} API processes, {num_engines} engines, {num_workers} workers replaced"
    tell(record_property, verdict, what)
    assert (verdict.num_cut, dict(verdict.refused)) == (0, {})
    assert verdict.num_ok == verdict.num_calls
    assert verdict.moved, "no engine was replaced while it answered"


async def test_control_a_restart_without_a_drain_is_noticed(rolled: BalancedCampaign) -> None:
    asked = rolled.questions()
    answers = await rolled.undisturbed(asked)
    verdict = await rolled.run(
        asked,
        answers,
        lambda clients: kill_api(rolled.stack, rolled.balancer, clients),
        innocent=frozenset({"not_enqueued", "api_lost", "abort", "stop", "length"}),
    )
    assert (verdict.num_cut, dict(verdict.refused)) != (0, {})
