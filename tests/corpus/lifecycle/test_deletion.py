"""What is deleted is not found at once, drained, aborted with a reason, and then nowhere at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, update

from app.adapters.erasure import MAX_SILENT_TRIES, EnginesSilentError, LetGo
from app.adapters.jobs import JobRunner
from app.adapters.residency import QueueEngines
from app.context import AppContext
from app.db import worker_scope
from app.settings import Settings
from app.tables import AdapterJob
from engine.transport.levers import EngineLevers
from lora.base_spec import BaseSpec
from tests.builders.operator import Operator
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_engine import StubEngine
from tests.builders.stub_loop import StubLoop
from tests.builders.waiting import until
from tests.corpus.lifecycle.conftest import BOT, Ask, Push, Version, code

V1, V2 = f"{BOT}/versions/v1", f"{BOT}/versions/v2"
PROD = f"{BOT}/aliases/prod"


@pytest.fixture
async def levers(redis_url: str) -> AsyncIterator[EngineLevers]:
    opened = EngineLevers(redis_url, secret=QUEUE_SECRET)
    yield opened
    await opened.close()


@pytest.fixture
def jobs(jobs: JobRunner, levers: EngineLevers) -> JobRunner:
    """The worker's, with the queue's engines to tell."""
    return replace(jobs, engines=QueueEngines(levers, timeout_s=2.0))


def stored(settings: Settings) -> list[Path]:
    return [path for path in Path(settings.adapter_store).glob("ten_*/*") if path.is_dir()]


async def state_of(operator: Operator, path: str) -> str:
    return str((await operator.done("GET", path))["state"])


async def erasures(operator: Operator) -> list[dict[str, object]]:
    return list((await operator.done("GET", "/tenants/acme/erasures"))["data"])


async def test_a_version_that_an_alias_may_mean_is_not_deleted(
    operator: Operator, versions: list[Version]
) -> None:
    targets = [{"version": "v1", "weight": 99}, {"version": "v2", "weight": 1}]
    await operator.done("PUT", PROD, json={"targets": targets})
    for path in (V1, V2):
        for query in ({}, {"force": True}):
            refused = await operator.call("DELETE", path, params=query)
            assert code(refused) == (409, "alias_in_use")
            assert refused.json()["error"]["aliases"] == ["prod"]
            assert refused.headers["x-should-retry"] == "false"
        assert await state_of(operator, path) == "active"


async def test_force_moves_aliases_where_it_is_told_to(
    operator: Operator, versions: list[Version]
) -> None:
    await operator.done("DELETE", V1, params={"force": True, "aliases": "v2"})
    assert (await operator.done("GET", PROD))["version"] == "v2"
    assert await state_of(operator, V1) == "deleting"


async def test_force_removes_aliases_where_it_is_told_to(
    operator: Operator, versions: list[Version]
) -> None:
    await operator.done("DELETE", V1, params={"force": True, "aliases": "remove"})
    assert code(await operator.call("GET", PROD)) == (404, "not_found")
    history = (await operator.done("GET", f"{PROD}/history"))["data"]
    assert history[0]["targets"] == []


async def test_force_does_not_move_aliases_to_what_may_not_be_named(
    operator: Operator, versions: list[Version]
) -> None:
    await operator.done("DELETE", f"{BOT}/versions/v3")
    for other in ("v1", "v3"):
        refused = await operator.call("DELETE", V1, params={"force": True, "aliases": other})
        assert code(refused) == (409, "version_not_active")
    assert (await operator.done("GET", PROD))["version"] == "v1"


async def test_a_deleted_version_is_not_found_while_what_runs_on_it_is_drained(
    operator: Operator, versions: list[Version], engine: StubLoop, ask: Ask, settings: Settings
) -> None:
    running = asyncio.create_task(ask("bot@v2", max_tokens=100))
    await until(lambda: engine.num_sequences == 1 or running.done())
    await operator.done("DELETE", V2)
    await operator.run_jobs()

    assert await state_of(operator, V2) == "deleting"
    assert code(await ask("bot@v2")) == (404, "model_not_found")
    assert (await running).status_code == 200
    assert len(stored(settings)) == 3 and await erasures(operator) == []


async def test_what_still_runs_after_the_drain_is_ended_with_its_reason(
    operator: Operator,
    push: Push,
    ask: Ask,
    settings: Settings,
    redis_url: str,
    tiny_base: BaseSpec,
) -> None:
    """Each step takes long, so that the request is still there when the worker comes."""
    await push(1)
    version = await push(2)
    with StubLoop(redis_url, tiny_base, step_s=0.05) as engine:
        running = asyncio.create_task(ask("bot@v2", max_tokens=400))
        other = asyncio.create_task(ask("bot@v1", max_tokens=20))
        await until(lambda: engine.num_sequences == 2 or running.done())
        assert not running.done(), "it ended by itself: another seed is needed"
        await operator.done("DELETE", V2, params={"drain_s": 0})
        await operator.run_jobs()

        assert code(await running) == (404, "adapter_deleted")
        assert (await other).status_code == 200
        assert await state_of(operator, V2) == "deleted"
        (erased,) = await erasures(operator)
        assert erased["digest"] == version["digest"]
        assert erased["version_ids"] == [version["id"]]
        assert erased["engines"] == [{"engine_id": "stub-loop", "num_aborted": 1}]
        assert len(stored(settings)) == 1
        digests = {digest for _, digest in engine.core.residency.ready_keys()}
        assert version["digest"] not in digests
        engine.core.check_integrity()


async def test_an_engine_that_lives_and_says_nothing_keeps_the_version_deleting(
    operator: Operator, versions: list[Version], redis_url: str, settings: Settings
) -> None:
    with StubEngine(redis_url, engine_id="mute"):
        await operator.done("DELETE", V2, params={"erase": True})
        await operator.run_jobs()
        assert await state_of(operator, V2) == "deleting"
        assert len(stored(settings)) == 3 and await erasures(operator) == []
    # It is gone now, and holds nothing any more: the job comes back.
    await operator.run_jobs_after()
    assert await state_of(operator, V2) == "deleted"
    assert len(stored(settings)) == 2 and len(await erasures(operator)) == 1


async def test_an_engine_that_never_says_anything_does_not_hold_a_deletion_for_ever(
    operator: Operator,
    versions: list[Version],
    redis_url: str,
    settings: Settings,
    jobs: JobRunner,
    levers: EngineLevers,
    context: AppContext,
) -> None:
    """After so many tries the bytes go without its word, and the record says so."""
    hasty = replace(jobs, engines=QueueEngines(levers, timeout_s=0.2))
    await operator.done("DELETE", V2, params={"erase": True})
    with StubEngine(redis_url, engine_id="mute"):
        await tried_before(context, MAX_SILENT_TRIES - 2)
        assert await hasty.run_next()
        assert await state_of(operator, V2) == "deleting" and len(stored(settings)) == 3
        await tried_before(context, MAX_SILENT_TRIES - 1)
        assert await hasty.run_next()
    assert await state_of(operator, V2) == "deleted" and len(stored(settings)) == 2
    (erased,) = await erasures(operator)
    assert erased["engines"] == [{"engine_id": "mute", "num_aborted": None}]


async def tried_before(context: AppContext, num_times: int) -> None:
    """The jobs that wait are due, and were tried so often."""
    async with context.database.session() as session:
        await worker_scope(session)
        values = {"attempts": num_times, "not_before": func.now()}
        await session.execute(update(AdapterJob).values(values))
        await session.commit()


async def test_without_engines_bytes_are_erased_at_once_where_that_is_asked_for(
    operator: Operator, versions: list[Version], settings: Settings
) -> None:
    await operator.done("DELETE", V2, params={"erase": True})
    await operator.run_jobs()
    assert await state_of(operator, V2) == "deleted"
    assert len(stored(settings)) == 2


async def test_control_without_erase_they_stay_for_a_while(
    operator: Operator, versions: list[Version], settings: Settings
) -> None:
    await operator.done("DELETE", V2)
    await operator.run_jobs()
    assert await state_of(operator, V2) == "deleting"
    assert len(stored(settings)) == 3


async def test_a_deleted_adapters_bytes_are_erased_with_a_record_that_outlives_it(
    operator: Operator, versions: list[Version], engine: StubLoop, settings: Settings
) -> None:
    await operator.done("DELETE", BOT, params={"force": True, "erase": True})
    await operator.run_jobs()
    assert stored(settings) == []
    digests = {each["digest"] for each in await erasures(operator)}
    assert digests == {each["digest"] for each in versions}


async def test_the_same_bytes_sent_again_are_served_again(
    operator: Operator, push: Push, engine: StubLoop, ask: Ask
) -> None:
    await push(1)
    before = await push(2)
    await operator.done("DELETE", V2, params={"erase": True})
    await operator.run_jobs()
    again = await push(2)
    assert (again["digest"], again["version"]) == (before["digest"], "v3")
    answer = await ask("bot@v3")
    assert answer.status_code == 200
    assert answer.headers["x-adapter-digest"] == before["digest"]


async def test_what_an_engine_was_told_twice_is_counted_together(
    operator: Operator, versions: list[Version], jobs: JobRunner
) -> None:
    """The engines are told before the store and after: a request in between counts as well."""

    class Twice:
        def __init__(self) -> None:
            self.told: list[str] = []

        async def let_go(self, tenant_id: str, digest: str) -> Sequence[LetGo]:
            self.told.append(digest)
            return [LetGo("a", len(self.told))]

    engines = Twice()
    runner = replace(jobs, engines=engines)
    await operator.done("DELETE", V2, params={"erase": True})
    while await runner.run_next():
        pass
    assert engines.told == [versions[1]["digest"]] * 2
    (erased,) = await erasures(operator)
    assert erased["engines"] == [{"engine_id": "a", "num_aborted": 3}]


async def test_control_a_mute_engine_is_noticed(redis_url: str, levers: EngineLevers) -> None:
    mute = StubEngine(redis_url, engine_id="mute")
    with mute, pytest.raises(EnginesSilentError, match="mute"):
        await QueueEngines(levers, timeout_s=0.3).let_go("ten_a", "sha256:" + "0" * 64)
