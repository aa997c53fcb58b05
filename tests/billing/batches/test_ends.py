"""Batches that are not let run: cancelled, expired, their key revoked, their tenant suspended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
import redis
from sqlalchemy import text

from app.batches import patience
from app.db import Database
from tests.billing.batches.conftest import Working
from tests.billing.batches.inputs import Submitter, chat_line
from tests.builders.clock import Clock
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually, until
from tests.fixtures.servers import TestDatabase

LINES = [chat_line(str(i)) for i in range(6)]


async def two_run(engine: StubEngine) -> None:
    await until(lambda: engine.num_running == 2, timeout_s=30)


def has_status(submitter: Submitter, batch_id: str, status: str) -> Callable[[], Awaitable[bool]]:
    async def has() -> bool:
        return (await submitter.get(batch_id))["status"] == status

    return has


async def test_a_cancelled_batch_ends_with_what_ran(
    submitter: Submitter, engine: StubEngine, working: Working
) -> None:
    engine.pause()
    async with working(batch_concurrency=2):
        batch = await submitter.submit(LINES)
        await two_run(engine)
        path = f"/batches/{batch['id']}/cancel"
        for _ in range(2):  # a second call changes nothing
            cancelling = (await submitter.call("POST", path)).json()
            assert cancelling["status"] == "cancelling" and cancelling["cancelling_at"]
        await asyncio.sleep(2.0)  # until the worker has heard of it
        engine.resume()
        done = await submitter.ended(batch["id"])
    assert done["status"] == "cancelled" and done["cancelled_at"]
    assert done["request_counts"] == {"total": 6, "completed": 2, "failed": 0}
    assert len(await submitter.lines_of(done["output_file_id"])) == 2
    assert len(engine.requests) == 2
    again = await submitter.call("POST", path)
    assert again.json()["status"] == "cancelled"


async def test_a_batch_that_nobody_runs_yet_can_be_cancelled_and_one_that_ended_cannot(
    submitter: Submitter, engine: StubEngine, working: Working
) -> None:
    waiting, other = await submitter.submit(LINES), await submitter.submit(LINES[:1])
    await submitter.call("POST", f"/batches/{waiting['id']}/cancel")
    async with working():
        done = await submitter.ended(waiting["id"])
        completed = await submitter.ended(other["id"])
    assert (done["status"], done["output_file_id"]) == ("cancelled", None)
    refused = await submitter.call("POST", f"/batches/{completed['id']}/cancel")
    assert refused.json()["error"]["code"] == "batch_not_cancellable"


async def test_what_has_not_run_when_the_window_closes_is_told_so(
    submitter: Submitter, engine: StubEngine, working: Working, clock: Clock
) -> None:
    engine.pause()
    async with working(batch_concurrency=2):
        batch = await submitter.submit(LINES)
        await two_run(engine)
        clock.advance(24 * 3600 + 1)
        engine.resume()
        done = await submitter.ended(batch["id"])
    assert done["status"] == "expired" and done["expired_at"]
    assert done["request_counts"] == {"total": 6, "completed": 2, "failed": 4}
    errors = await submitter.lines_of(done["error_file_id"])
    assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}
    assert all(each["response"] is None for each in errors.values())
    assert len(await submitter.lines_of(done["output_file_id"])) == 2


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_revoked_keys_waiting_lines_fail_with_key_disabled(
    submitter: Submitter,
    api: httpx.AsyncClient,
    operator: Operator,
    acme: Tenant,
    engine: StubEngine,
    working: Working,
    is_deleted: bool,
) -> None:
    engine.pause()
    async with working(batch_concurrency=2):
        batch = await submitter.submit(LINES)
        await two_run(engine)
        path = f"/tenants/acme/keys/{acme.key_id}"
        if is_deleted:
            assert (await operator.call("DELETE", path)).is_success
        else:
            await operator.done("POST", f"{path}/disable")
        engine.resume()
        key = await operator.new_key("acme")
        reader = Submitter(api, Tenant(acme.id, acme.slug, key["id"], key["secret"]))
        done = await reader.ended(batch["id"])
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 6, "completed": 2, "failed": 4}
    errors = await reader.lines_of(done["error_file_id"])
    assert {each["error"]["code"] for each in errors.values()} == {"key_disabled"}
    assert len(engine.requests) == 2  # control: what ran before did come to its end


async def test_a_rotated_keys_batch_goes_on_with_the_key_in_its_place(
    submitter: Submitter,
    api: httpx.AsyncClient,
    operator: Operator,
    acme: Tenant,
    engine: StubEngine,
    working: Working,
    clock: Clock,
) -> None:
    batch = await submitter.submit(LINES)
    path = f"/tenants/acme/keys/{acme.key_id}/rotate"
    new = await operator.done("POST", path, json={"overlap_s": 60})
    clock.advance(61)
    async with working():
        reader = Submitter(api, Tenant(acme.id, acme.slug, new["id"], new["secret"]))
        done = await reader.ended(batch["id"])
    assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}


async def test_a_suspended_tenants_lines_wait_until_it_is_resumed(
    submitter: Submitter,
    operator: Operator,
    engine: StubEngine,
    working: Working,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "SUSPENDED_WAIT_S", 0.2)
    batch = await submitter.submit(LINES)
    await operator.done("POST", "/tenants/acme/suspend")
    async with working():
        await asyncio.sleep(3.0)
        assert not engine.requests
        await operator.done("POST", "/tenants/acme/resume")
        done = await submitter.ended(batch["id"])
    assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}


async def test_lines_wait_for_the_tenants_limits_and_never_pass_them(
    submitter: Submitter, operator: Operator, engine: StubEngine, working: Working
) -> None:
    limits = {"limits": {"concurrency": 2, "queue_depth": 2}}
    await operator.done("PUT", "/tenants/acme/limits", json=limits)
    engine.pause()
    body = {"model": MODEL_ID, "prompt": "first", "max_tokens": 2}
    asked = [asyncio.create_task(submitter.call("POST", "/completions", json=body))]
    asked.append(asyncio.create_task(submitter.call("POST", "/completions", json=body)))
    await two_run(engine)  # they have all that the tenant may have
    async with working():
        batch = await submitter.submit(LINES)
        await eventually(has_status(submitter, batch["id"], "in_progress"), timeout_s=30)
        await asyncio.sleep(2.0)
        assert len(engine.requests) == 2
        engine.resume()
        done = await submitter.ended(batch["id"])
    assert all([(await each).is_success for each in asked])
    assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}


async def test_interactive_requests_go_before_a_batchs_lines(
    submitter: Submitter, redis_url: str, working: Working
) -> None:
    with StubEngine(redis_url, max_running=1) as engine:
        engine.pause()
        async with working():
            batch = await submitter.submit([chat_line(str(i)) for i in range(8)])
            await until(lambda: engine.num_running == 1, timeout_s=30)
            body = {"model": MODEL_ID, "prompt": "now!", "max_tokens": 2}
            asked = asyncio.create_task(submitter.call("POST", "/completions", json=body))
            await until(lambda: _num_waiting(redis_url) >= 8, timeout_s=30)
            engine.resume()
            assert (await asked).is_success
            done = await submitter.ended(batch["id"])
        tiers = [request.service_tier.value for request in engine.requests]
    assert tiers[:2] == ["flex", "default"] and set(tiers[2:]) == {"flex"}
    assert done["request_counts"]["completed"] == 8


async def test_batches_of_one_tenant_run_one_after_the_other_and_of_two_at_once(
    submitter: Submitter, globex: Tenant, engine: StubEngine, working: Working
) -> None:
    other = Submitter(submitter.api, globex)
    engine.pause()
    async with working(batch_concurrency=2):
        mine = [await submitter.submit(LINES) for _ in range(2)]
        theirs = await other.submit(LINES)
        await until(lambda: engine.num_running == 4, timeout_s=30)
        await eventually(has_status(other, theirs["id"], "in_progress"))
        states = sorted([(await submitter.get(each["id"]))["status"] for each in mine])
        assert states == ["in_progress", "validating"]
        engine.resume()
        for batch in mine:
            assert (await submitter.ended(batch["id"]))["request_counts"]["completed"] == 6
        await other.ended(theirs["id"])
    assert len(engine.requests) == 18


async def test_a_batch_of_many_turns_runs_each_line_once(
    submitter: Submitter, redis_url: str, working: Working
) -> None:
    with StubEngine(redis_url, step_s=0.05) as engine:
        async with working(turn_s=0.5, batch_concurrency=2):
            batch = await submitter.submit([chat_line(str(i)) for i in range(24)])
            done = await submitter.ended(batch["id"])
        assert len(engine.requests) == 24
    assert done["request_counts"] == {"total": 24, "completed": 24, "failed": 0}
    assert len(await submitter.lines_of(done["output_file_id"])) == 24


async def test_a_batch_ends_whose_line_is_too_long_since_it_was_checked(
    submitter: Submitter,
    engine: StubEngine,
    working: Working,
    database: TestDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = await submitter.submit([chat_line("a"), chat_line("b", "x" * 2000)])
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:  # as a worker leaves it that found it in order
        await session.execute(text("UPDATE batches SET status = 'in_progress', num_total = 2"))
        await session.commit()
    await owner.close()
    monkeypatch.setenv("TENFOLD_MAX_BODY_BYTES", "1024")
    async with working():
        done = await submitter.ended(batch["id"])
    assert done["status"] == "failed"
    found = [(error["line"], error["code"]) for error in done["errors"]["data"]]
    assert found == [(2, "line_too_long")]


def _num_waiting(redis_url: str) -> int:
    with redis.Redis.from_url(redis_url) as client:
        return int(client.get("{tenfold}:num_queued") or 0)
