"""What was deleted is kept for a while, in which it may be had back; and then it is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from app.adapters.jobs_repository import REMOVAL_DELAY_S
from app.settings import Settings
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.clock import Clock
from tests.builders.operator import Operator
from tests.builders.stub_loop import StubLoop
from tests.corpus.lifecycle.conftest import BOT, Ask, Push, Version, code

V1, V2 = f"{BOT}/versions/v1", f"{BOT}/versions/v2"
WEEK_S = 7 * 86_400


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"adapter_retention_days": 7})


def stored(settings: Settings) -> list[Path]:
    return [path for path in Path(settings.adapter_store).glob("ten_*/*") if path.is_dir()]


async def state_of(operator: Operator, path: str) -> str:
    return str((await operator.done("GET", path))["state"])


async def pass_time(operator: Operator, clock: Clock, seconds: float) -> None:
    """Let it pass, and do what is due then."""
    clock.advance(seconds)
    await operator.run_jobs_after(seconds)


async def test_a_deleted_version_is_ended_after_its_drain_and_had_back_within_its_time(
    operator: Operator,
    versions: list[Version],
    engine: StubLoop,
    ask: Ask,
    clock: Clock,
    settings: Settings,
) -> None:
    await operator.done("DELETE", V2)
    assert code(await ask("bot@v2")) == (404, "model_not_found")
    await pass_time(operator, clock, REMOVAL_DELAY_S)
    assert await state_of(operator, V2) == "deleting" and len(stored(settings)) == 3

    restored = await operator.done("POST", f"{V2}/restore")

    assert (restored["state"], restored["digest"]) == ("active", versions[1]["digest"])
    answer = await ask("bot@v2")
    assert answer.headers["x-adapter-digest"] == versions[1]["digest"]
    await pass_time(operator, clock, 2 * WEEK_S)
    assert await state_of(operator, V2) == "active" and len(stored(settings)) == 3
    events = (await operator.done("GET", "/audit/acme", params={"limit": 100}))["data"]
    told = [each["action"] for each in events if each["target"] == versions[1]["id"]]
    assert {"version.deleted", "version.restored"} <= set(told)


async def test_after_its_time_it_is_erased_and_nothing_to_be_had_back(
    operator: Operator, versions: list[Version], clock: Clock, settings: Settings
) -> None:
    await operator.done("DELETE", V2)
    await pass_time(operator, clock, REMOVAL_DELAY_S)
    await pass_time(operator, clock, WEEK_S)
    assert await state_of(operator, V2) == "deleted" and len(stored(settings)) == 2
    refused = await operator.call("POST", f"{V2}/restore")
    assert code(refused) == (409, "version_state_conflict")


async def test_a_version_that_is_deleted_once_more_is_retained_as_long_again(
    operator: Operator, versions: list[Version], clock: Clock, settings: Settings
) -> None:
    await operator.done("DELETE", V2)
    await pass_time(operator, clock, REMOVAL_DELAY_S)
    await operator.done("POST", f"{V2}/restore")
    await pass_time(operator, clock, WEEK_S / 2)
    await operator.done("DELETE", V2)
    await pass_time(operator, clock, REMOVAL_DELAY_S)
    await pass_time(operator, clock, 0.6 * WEEK_S)
    assert await state_of(operator, V2) == "deleting" and len(stored(settings)) == 3
    await pass_time(operator, clock, WEEK_S)
    assert await state_of(operator, V2) == "deleted" and len(stored(settings)) == 2


@pytest.mark.parametrize("is_asked_later", [False, True])
async def test_erase_keeps_nothing_also_where_it_is_asked_for_later(
    operator: Operator, versions: list[Version], settings: Settings, is_asked_later: bool
) -> None:
    if is_asked_later:
        await operator.done("DELETE", V2)
        await operator.run_jobs_after()
        assert await state_of(operator, V2) == "deleting"
    await operator.done("DELETE", V2, params={"erase": True})
    await operator.run_jobs()
    assert await state_of(operator, V2) == "deleted" and len(stored(settings)) == 2


async def test_a_deleted_adapters_bytes_are_retained_for_nobody(
    operator: Operator, versions: list[Version], settings: Settings
) -> None:
    await operator.done("DELETE", V2)
    await operator.run_jobs_after()
    await operator.done("DELETE", BOT, params={"force": True, "erase": True})
    await operator.run_jobs()
    assert stored(settings) == []


async def test_a_version_of_which_bytes_are_missing_is_not_had_back(
    operator: Operator, versions: list[Version], settings: Settings
) -> None:
    await operator.done("DELETE", V2)
    digest = versions[1]["digest"].removeprefix("sha256:")
    (folder,) = [path for path in stored(settings) if path.name == digest]
    shutil.rmtree(folder)
    assert code(await operator.call("POST", f"{V2}/restore")) == (409, "version_erased")
    assert await state_of(operator, V2) == "deleting"


async def test_a_version_that_a_removal_has_left_half_of_is_not_had_back(
    operator: Operator, versions: list[Version], settings: Settings
) -> None:
    await operator.done("DELETE", V2)
    digest = versions[1]["digest"].removeprefix("sha256:")
    (folder,) = [path for path in stored(settings) if path.name == digest]
    (folder / WEIGHTS_FILE).unlink()
    assert (folder / CONFIG_FILE).is_file()
    assert code(await operator.call("POST", f"{V2}/restore")) == (409, "version_erased")
    assert await state_of(operator, V2) == "deleting"


async def test_a_version_whose_bytes_were_sent_again_is_not_had_back_beside_them(
    operator: Operator, versions: list[Version], push: Push
) -> None:
    await operator.done("DELETE", V2)
    again = await push(2)
    refused = await operator.call("POST", f"{V2}/restore")
    assert code(refused) == (409, "version_superseded")
    assert refused.json()["error"]["version"] == again["version"] == "v4"


async def test_a_deleted_version_is_not_activated_and_one_that_never_was_is_not_restored(
    operator: Operator, versions: list[Version]
) -> None:
    await operator.done("DELETE", V2)
    refused = await operator.call("POST", f"{V2}/activate")
    assert code(refused) == (409, "version_state_conflict")
    assert code(await operator.call("POST", f"{V1}/restore")) == (409, "version_state_conflict")
