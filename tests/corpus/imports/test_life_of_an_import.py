"""How imports go on and end: cancelled, left by a dead worker, given back, told as events."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.adapters.keeping import MAX_PUT_S
from app.context import AppContext
from app.db import tenant_scope
from app.imports.repository import ImportRepository
from app.imports.running import LEASE, MAX_BEGINNINGS
from app.settings import Settings
from tests.builders.clock import Clock
from tests.builders.https_server import Answer, HttpsServer
from tests.builders.operator import Operator, Tenant
from tests.builders.waiting import eventually
from tests.corpus.imports.conftest import IMPORTS, Importing

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


async def test_a_cancelled_import_stops_where_it_is(
    importing: Importing, operator: Operator, models: HttpsServer, settings: Settings
) -> None:
    began, release = threading.Event(), threading.Event()

    def body(write: Callable[[bytes], None]) -> None:
        write(b"{")
        began.set()
        release.wait(30)

    models.published[f"/bots/one/{CONFIG}"] = Answer(body, length=10)
    job = await importing.begin(f"{models.url}/bots/one")
    running = asyncio.create_task(importing.runner.run_next())
    assert await asyncio.to_thread(began.wait, 10)
    assert (await importing.get(job))["state"] == "running"
    path = f"{IMPORTS}/{job['id']}/cancel"
    assert (await operator.done("POST", path))["state"] == "cancelled"
    assert await asyncio.wait_for(running, 10)
    release.set()
    assert (await operator.done("POST", path))["state"] == "cancelled"
    assert not await importing.runner.run_next()
    assert list((settings.data_dir / "uploads").iterdir()) == []


@pytest.mark.parametrize("parting_s", [60.0, 0.0])
async def test_bytes_of_an_import_that_is_cancelled_while_they_are_put_go_and_not_before_they_came(
    importing: Importing,
    operator: Operator,
    models: HttpsServer,
    files: dict[str, bytes],
    settings: Settings,
    context: AppContext,
    monkeypatch: pytest.MonkeyPatch,
    parting_s: float,
) -> None:
    """The thread that puts goes on. The control does not wait for it: nothing is locked then."""
    began, release, put = threading.Event(), threading.Event(), context.store.put

    def slowly(*args: Any) -> str:
        locator = put(*args)
        began.set()
        assert release.wait(30)
        return locator

    monkeypatch.setattr(context.store, "put", slowly)
    monkeypatch.setattr("app.adapters.keeping.MAX_PARTING_S", parting_s)
    models.publish("bots/one", files)
    job = await importing.begin(f"{models.url}/bots/one")
    running = asyncio.create_task(importing.runner.run_next())
    assert await asyncio.to_thread(began.wait, 10)
    await operator.done("POST", f"{IMPORTS}/{job['id']}/cancel")
    await asyncio.wait((running,), timeout=10 if parting_s == 0 else 0.3)
    assert running.done() is (parting_s == 0)
    (folder,) = stored(settings)
    locator = f"{folder.parent.name}/{folder.name}"
    assert await are_locked(context, locator) is (parting_s > 0)

    release.set()
    assert await asyncio.wait_for(running, 10)
    await operator.run_jobs()
    assert folder.exists() and (await importing.get(job))["state"] == "cancelled"
    await operator.run_jobs_after(MAX_PUT_S)
    assert not folder.exists()


def stored(settings: Settings) -> list[Path]:
    return [*Path(settings.adapter_store).glob("ten_*/*")]


async def are_locked(context: AppContext, locator: str) -> bool:
    async with context.database.session() as session:
        free = "SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))"
        return not await session.scalar(text(free), {"name": locator})


async def test_a_cancelled_import_is_never_begun_and_an_ended_one_not_cancelled(
    importing: Importing, operator: Operator, models: HttpsServer, files: dict[str, bytes]
) -> None:
    job = await importing.begin(f"{models.url}/bots/one")
    await operator.done("POST", f"{IMPORTS}/{job['id']}/cancel")
    assert not await importing.runner.run_next() and models.asked == []

    models.publish("bots/one", files)
    job = await importing.run(f"{models.url}/bots/one")
    response = await operator.call("POST", f"{IMPORTS}/{job['id']}/cancel")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "import_ended")


async def test_an_import_whose_worker_died_is_begun_anew_by_another(
    importing: Importing,
    models: HttpsServer,
    files: dict[str, bytes],
    clock: Clock,
    context: AppContext,
    acme: Tenant,
) -> None:
    models.publish("bots/one", files)
    job = await importing.begin(f"{models.url}/bots/one")
    async with context.database.session() as session:  # as a worker claims it that dies then
        await tenant_scope(session, acme.id)
        imports = ImportRepository(session, acme.id)
        dead = await imports.claim(job["id"], clock.now(), clock.now() + LEASE)
        await session.commit()
    assert dead is not None
    assert not await importing.runner.run_next()  # it is the dead worker's, for all that is known
    clock.advance(60)
    assert await importing.runner.run_next()
    assert (await importing.get(job))["state"] == "succeeded"
    async with context.database.session() as session:  # and the dead one has no say
        await tenant_scope(session, acme.id)
        imports = ImportRepository(session, acme.id)
        assert not await imports.change(job["id"], dead.attempts, {"bytes_done": 1})


async def test_an_import_that_kills_its_workers_is_given_up_with_a_reason(
    importing: Importing,
    models: HttpsServer,
    files: dict[str, bytes],
    clock: Clock,
    context: AppContext,
    acme: Tenant,
) -> None:
    models.publish("bots/one", files)
    job = await importing.begin(f"{models.url}/bots/one", token="a-token-that-opens-it")
    for _ in range(MAX_BEGINNINGS):
        async with context.database.session() as session:
            await tenant_scope(session, acme.id)
            imports = ImportRepository(session, acme.id)
            assert await imports.claim(job["id"], clock.now(), clock.now() + LEASE) is not None
            await session.commit()
        clock.advance(60)
    assert await importing.runner.run_next()
    given_up = await importing.get(job)
    assert (given_up["state"], given_up["error"]["code"]) == ("failed", "import_abandoned")
    assert given_up["ended_at"] is not None and models.asked == []
    assert not await importing.runner.run_next()


async def test_a_worker_that_is_stopped_gives_its_import_back(
    importing: Importing, models: HttpsServer
) -> None:
    began, release = threading.Event(), threading.Event()

    def body(write: Callable[[bytes], None]) -> None:
        began.set()
        release.wait(30)

    models.published[f"/bots/one/{CONFIG}"] = Answer(body, length=10)
    job = await importing.begin(f"{models.url}/bots/one")
    stopping = asyncio.Event()
    running = asyncio.create_task(importing.runner.run_next(stopping))
    assert await asyncio.to_thread(began.wait, 10)
    stopping.set()
    await asyncio.wait_for(running, 10)
    release.set()
    assert (await importing.get(job))["state"] == "queued"


async def test_progress_is_told_as_events(
    importing: Importing, operator: Operator, models: HttpsServer, files: dict[str, bytes]
) -> None:
    release = threading.Event()
    models.publish("bots/one", files)

    def slow(write: Callable[[bytes], None]) -> None:
        write(files[WEIGHTS][:1000])
        release.wait(30)
        write(files[WEIGHTS][1000:])

    models.published[f"/bots/one/{WEIGHTS}"] = Answer(slow, length=len(files[WEIGHTS]))
    job = await importing.begin(f"{models.url}/bots/one")
    listening = asyncio.create_task(operator.call("GET", f"{IMPORTS}/{job['id']}/events"))
    await asyncio.sleep(0.2)  # the first event is of a job that waits
    running = asyncio.create_task(importing.runner.run_next())

    async def is_half_way() -> bool:
        return bool(0 < (await importing.get(job))["bytes_done"] < sum(map(len, files.values())))

    await eventually(is_half_way)
    await asyncio.sleep(0.7)  # longer than between two looks of who listens
    release.set()
    await running
    response = await listening
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [event.split("\n") for event in response.text.strip().split("\n\n")]
    states = [lines[0].removeprefix("event: ") for lines in events]
    done = [json.loads(lines[1].removeprefix("data: "))["bytes_done"] for lines in events]
    assert states[0] == "queued" and "running" in states and states[-1] == "succeeded"
    assert done == sorted(done) and len(set(done)) > 2
