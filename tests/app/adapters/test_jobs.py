"""The worker's jobs: done once, given back by a worker that dies, never in each other's way."""

from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from app.adapters.jobs import JobRunner
from app.adapters.jobs_repository import REMOVAL_DELAY_S, claim_job
from app.context import AppContext
from app.db import Database
from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator
from tests.fixtures.servers import TestDatabase

BOT = "/tenants/acme/adapters/bot"


@pytest.fixture(autouse=True)
async def acme_with_a_bot(operator: Operator) -> None:
    await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")


async def as_owner(database: TestDatabase, statement: str) -> list[tuple[object, ...]]:
    owner = Database(database.owner_url)
    async with owner.session() as session:
        result = await session.execute(text(statement))
        rows = [tuple(row) for row in result] if result.returns_rows else []
        await session.commit()
    await owner.close()
    return rows


def stored_files(settings: Settings) -> list[Path]:
    return sorted(Path(settings.adapter_store).glob("ten_*/*/*"))


def stored_weights(settings: Settings) -> Path:
    _, weights = stored_files(settings)
    return weights


def damage_bytes(settings: Settings, damage: str) -> None:
    weights = stored_weights(settings)
    if damage == "missing":
        shutil.rmtree(weights.parent)
    else:
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")


async def test_two_workers_never_take_the_same_job(
    operator: Operator, context: AppContext, tiny_base: BaseSpec
) -> None:
    for seed in (1, 2):
        await operator.upload("acme", "bot", adapter_files(tiny_base, seed=seed))

    async with context.database.session() as one, context.database.session() as two:
        first, second = await claim_job(one), await claim_job(two)
        async with context.database.session() as three:
            third = await claim_job(three)

    assert first is not None and second is not None
    assert first.id != second.id and third is None


async def test_job_of_a_worker_that_dies_is_taken_by_another(
    operator: Operator, context: AppContext, jobs: JobRunner, tiny_base: BaseSpec
) -> None:
    await operator.upload("acme", "bot", adapter_files(tiny_base))
    async with context.database.session() as dying:
        assert await claim_job(dying) is not None
        assert not await jobs.run_next()

    assert await jobs.run_next()
    assert (await operator.done("GET", f"{BOT}/versions/v1"))["state"] == "active"


async def test_versions_verified_at_once_give_prod_to_one(
    operator: Operator, jobs: JobRunner, tiny_base: BaseSpec
) -> None:
    for seed in range(4):
        await operator.upload("acme", "bot", adapter_files(tiny_base, seed=seed))

    await asyncio.gather(*(jobs.run_next() for _ in range(4)))

    page = await operator.done("GET", f"{BOT}/versions")
    assert [row["state"] for row in page["data"]] == ["active"] * 4
    assert len((await operator.done("GET", BOT))["aliases"]) == 1


async def test_adapter_deleted_before_its_check_leaves_nothing(
    operator: Operator, tiny_base: BaseSpec, settings: Settings, database: TestDatabase
) -> None:
    await operator.upload("acme", "bot", adapter_files(tiny_base))
    await operator.done("DELETE", BOT, params={"force": True})
    await operator.run_jobs_after()

    assert await as_owner(database, "SELECT id FROM adapter_jobs") == []
    assert stored_files(settings) == []


async def test_deleted_bytes_stay_for_requests_that_are_pinned_to_them(
    operator: Operator, tiny_base: BaseSpec, settings: Settings
) -> None:
    await operator.push("acme", "bot", adapter_files(tiny_base))
    await operator.done("DELETE", f"{BOT}/aliases/prod")
    await operator.done("DELETE", f"{BOT}/versions/v1")

    await operator.run_jobs_after(REMOVAL_DELAY_S - 60)
    assert len(stored_files(settings)) == 2
    await operator.run_jobs_after(60)
    assert stored_files(settings) == []


async def test_bytes_deleted_twice_stay_as_long_after_the_second_time(
    operator: Operator, tiny_base: BaseSpec, settings: Settings
) -> None:
    for version in ("v1", "v2"):
        await operator.push("acme", "bot", adapter_files(tiny_base))
        await operator.call("DELETE", f"{BOT}/aliases/prod")
        await operator.done("DELETE", f"{BOT}/versions/{version}")
        await operator.run_jobs_after(REMOVAL_DELAY_S - 60)

    await operator.run_jobs_after(30)  # the first job came due long ago
    assert len(stored_files(settings)) == 2
    await operator.run_jobs_after(30)
    assert stored_files(settings) == []


@pytest.mark.parametrize("damage", ["missing", "changed"])
async def test_bytes_that_changed_in_the_store_are_rejected(
    operator: Operator, tiny_base: BaseSpec, settings: Settings, damage: str
) -> None:
    await operator.upload("acme", "bot", adapter_files(tiny_base))
    damage_bytes(settings, damage)
    await operator.run_jobs()

    version = await operator.done("GET", f"{BOT}/versions/v1")
    assert version["state"] == "rejected"
    assert [check["rule"] for check in version["report"]["checks"]] == ["adapter_corrupt"]


@pytest.mark.parametrize("damage", ["missing", "changed"])
async def test_same_bytes_again_repair_a_version_that_was_rejected(
    operator: Operator, tiny_base: BaseSpec, settings: Settings, damage: str
) -> None:
    await operator.upload("acme", "bot", adapter_files(tiny_base))
    damage_bytes(settings, damage)
    await operator.run_jobs()
    assert (await operator.done("GET", f"{BOT}/versions/v1"))["state"] == "rejected"

    again = (await operator.upload("acme", "bot", adapter_files(tiny_base))).json()
    assert (again["version"], again["state"]) == ("v1", "verifying")
    assert again["report"].pop("duration_ms") > 0
    assert again["report"] == {"status": "verifying", "digest": again["digest"], "checks": []}
    await operator.run_jobs()

    assert (await operator.done("GET", f"{BOT}/versions/v1"))["state"] == "active"
    assert (await operator.done("GET", BOT))["aliases"] == {"prod": "v1"}
    assert len(stored_files(settings)) == 2


@pytest.mark.parametrize("damage", ["missing", "changed"])
async def test_same_bytes_again_put_back_what_the_store_lost_of_an_active_version(
    operator: Operator, tiny_base: BaseSpec, settings: Settings, damage: str
) -> None:
    files = adapter_files(tiny_base)
    await operator.push("acme", "bot", files)
    damage_bytes(settings, damage)

    again = (await operator.upload("acme", "bot", files)).json()

    assert (again["version"], again["state"]) == ("v1", "active")
    assert stored_weights(settings).read_bytes() == files["adapter_model.safetensors"]


async def test_job_that_fails_waits_and_lets_others_pass(
    operator: Operator, jobs: JobRunner, tiny_base: BaseSpec, database: TestDatabase
) -> None:
    await operator.upload("acme", "bot", adapter_files(tiny_base, seed=1))
    await as_owner(
        database,
        "INSERT INTO adapter_jobs (id, tenant_id, kind, subject, not_before) SELECT 'job_bad',"
        " id, 'verify', 'ver_bad', now() - interval '1 hour' FROM tenants",
    )
    broken = JobRunner(jobs.database, jobs.store, jobs.base, _broken_clock)

    assert await broken.run_next()
    rows = await as_owner(
        database, "SELECT attempts, not_before - now() FROM adapter_jobs WHERE id = 'job_bad'"
    )

    ((attempts, wait),) = rows
    assert attempts == 1
    assert isinstance(wait, timedelta) and timedelta(0) < wait <= timedelta(seconds=2)
    assert await jobs.run_next()
    assert (await operator.done("GET", f"{BOT}/versions/v1"))["state"] == "active"


def _broken_clock() -> None:
    raise RuntimeError("no time")
