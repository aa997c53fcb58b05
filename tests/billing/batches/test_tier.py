"""A batch's lines yield to everybody's requests, however often they are begun."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis

from app.batches.line_runner import EPOCHS_A_TRY, LineRunner
from app.batches.lines import InputLine
from app.batches.patience import Patience
from app.batches.schemas import CHAT
from app.batches.serving import open_serving
from app.ids import new_id
from app.settings import Settings
from engine.transport import keys
from tests.billing.batches.conftest import Working
from tests.billing.batches.inputs import Submitter, chat_line
from tests.builders.clock import Clock
from tests.builders.operator import Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import until
from tests.fixtures.servers import TestDatabase

BODY = {"model": MODEL_ID, "prompt": "now!", "max_tokens": 2}


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        yield client


def num_waiting(server: redis.Redis) -> int:
    return int(server.get(f"{keys.PREFIX}num_queued") or 0)


def waiting_in(server: redis.Redis, lane: str) -> list[bytes]:
    """The tenants of a lane of the queue."""
    found = server.zrange(f"{keys.PREFIX}{lane}", 0, -1)
    assert isinstance(found, list)
    return found


async def test_interactive_requests_go_before_lines_whose_engine_died(
    submitter: Submitter, redis_url: str, server: redis.Redis, working: Working
) -> None:
    mortal = StubEngine(redis_url, engine_id="mortal", max_running=4)
    mortal.start()
    mortal.pause()
    with StubEngine(redis_url, engine_id="other", max_running=1) as other:
        other.pause()
        async with working(batch_concurrency=5):
            batch = await submitter.submit([chat_line(str(i)) for i in range(5)])
            await until(lambda: mortal.num_running + other.num_running == 5, timeout_s=30)
            mortal.kill()
            await until(lambda: num_waiting(server) == 4, timeout_s=30)
            asked = asyncio.create_task(submitter.call("POST", "/completions", json=BODY))
            await until(lambda: num_waiting(server) == 5, timeout_s=30)
            other.resume()
            assert (await asked).is_success
            done = await submitter.ended(batch["id"])
        tiers = [request.service_tier.value for request in other.requests]
        num_deaths = [request.num_deaths for request in other.requests]
    assert tiers == ["flex", "default", *["flex"] * 4]
    assert num_deaths == [0, 0, *[1] * 4]  # control: an engine had begun them
    assert done["request_counts"] == {"total": 5, "completed": 5, "failed": 0}


async def test_a_line_whose_worker_died_comes_back_as_flex(
    settings: Settings,
    database: TestDatabase,
    clock: Clock,
    acme: Tenant,
    submitter: Submitter,
    redis_url: str,
    server: redis.Redis,
) -> None:
    own = settings.model_copy(update={"database_url": database.worker_url})
    line, batch_id = InputLine(1, "a", chat_line("a")["body"]), new_id("bat")
    with StubEngine(redis_url, max_running=1) as engine:
        engine.pause()
        asked = asyncio.create_task(submitter.call("POST", "/completions", json=BODY))
        await until(lambda: engine.num_running == 1, timeout_s=30)
        for num_claims in (1, 2):
            async with open_serving(own, clock.now) as serving:
                runner = LineRunner(
                    context=serving.context,
                    acceptance=serving.acceptance,
                    take_back=serving.take_back,
                    batch_id=batch_id,
                    tenant_id=acme.id,
                    key_id=acme.key_id,
                    endpoint=CHAT,
                    num_claims=num_claims,
                    winding_up=asyncio.Event(),
                )
                patience = Patience(clock.now() + timedelta(hours=1))
                running = asyncio.create_task(runner.run(line, patience))
                await until(lambda: num_waiting(server) == 1, timeout_s=30)
                lanes = [waiting_in(server, each) for each in ("tenants_flex", "tenants")]
                assert lanes == [[acme.id.encode()], []]
                assert patience.may_have_run == (num_claims == 2)  # control: it is begun anew
                if num_claims == 1:
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
                    await until(lambda: num_waiting(server) == 0, timeout_s=30)
                else:
                    engine.resume()
                    assert not (await running).is_error
        assert (await asked).is_success
    assert [request.epoch > EPOCHS_A_TRY for request in engine.requests] == [False, True]
