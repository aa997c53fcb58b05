"""Real engines on a tiny model: what drains, hangs or dies is gone on with, to the same tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import redis

from engine.messages import EngineRequest, SamplingParams, TokenOutput
from engine.transport import keys
from engine.transport.client import QueueClient
from engine.watchdog import TICK_S, StepWatchdog
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.running_engine import RunningEngine
from tests.builders.waiting import until

HANG_GAP_S = 7.0


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[QueueClient]:
    client = QueueClient(redis_url, "api-test", secret=QUEUE_SECRET)
    await client.start()
    yield client
    await client.close()


def with_temperature(request: EngineRequest, temperature: float, seed: int) -> EngineRequest:
    sampling = SamplingParams(
        seed=seed, max_tokens=request.sampling.max_tokens, temperature=temperature
    )
    return msgspec.structs.replace(request, sampling=sampling)


def some_requests(max_tokens: int) -> list[EngineRequest]:
    """Half greedy, half seeded."""
    return [
        with_temperature(
            make_request(prompt=[3 + i, 4, 5 + i], max_tokens=max_tokens), 0.9 * (i % 2), seed=i
        )
        for i in range(6)
    ]


def again(request: EngineRequest) -> EngineRequest:
    return msgspec.structs.replace(request, request_id=f"{request.request_id}-again")


class Reading:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.last: TokenOutput | None = None
        self.longest_gap_s = 0.0

    async def run(self, client: QueueClient, request: EngineRequest) -> list[int]:
        heard_at = time.monotonic()
        async for output in await client.submit(request):
            self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - heard_at)
            heard_at = time.monotonic()
            assert output.error is None, output.error
            assert output.index == len(self.tokens)
            self.tokens += output.token_ids
            self.last = output
        return self.tokens


async def alone(client: QueueClient, requests: list[EngineRequest]) -> list[list[int]]:
    return [await Reading().run(client, again(request)) for request in requests]


async def test_a_drain_hands_over_what_does_not_end_in_time_and_not_a_token_changes(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    requests = some_requests(max_tokens=150)
    first = RunningEngine(
        tmp_path / "a", redis_url, engine_id="a", batch_invariant=True, drain_s=0.2
    )
    with first:
        readings = [Reading() for _ in requests]
        running = [
            asyncio.create_task(reading.run(client, request))
            for reading, request in zip(readings, requests, strict=True)
        ]
        await until(lambda: all(len(reading.tokens) > 3 for reading in readings))
        with RunningEngine(tmp_path / "b", redis_url, engine_id="b", batch_invariant=True):
            first.loop.drain()
            await until(lambda: first.has_ended)
            assert first.is_empty
            tokens = await asyncio.gather(*running)
            for reading in readings:
                assert reading.last is not None
                assert reading.last.num_generated_tokens == len(reading.tokens) == 150
                assert reading.last.epoch == 2
            assert tokens == await alone(client, requests)


async def test_a_drain_lets_what_is_short_finish_and_takes_nothing_new(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    with RunningEngine(tmp_path, redis_url) as engine:
        short = Reading()
        running = asyncio.create_task(short.run(client, make_request(max_tokens=60)))
        await until(lambda: len(short.tokens) > 1)
        engine.loop.drain()
        late = await client.submit(make_request(max_tokens=1), queue_timeout_s=1.5)
        assert len(await running) == 60
        await until(lambda: engine.has_ended)
        assert short.last is not None and short.last.epoch == 1
        [last] = [output async for output in late]
        assert last.error is not None and last.error.code == "queue_timeout"


async def test_an_idle_engine_drains_at_once(redis_url: str, tmp_path: Path) -> None:
    with RunningEngine(tmp_path, redis_url) as engine, redis.Redis.from_url(redis_url) as server:
        await until(lambda: server.zcard(keys.IDLE) == 1)
        engine.loop.drain()
        await until(lambda: engine.has_ended, timeout_s=5)
        assert server.zcard(keys.IDLE) == 0


async def test_requests_of_an_engine_that_hangs_go_on_at_another(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    hanging = RunningEngine(
        tmp_path / "a", redis_url, engine_id="a", batch_invariant=True, step_limit_s=2.0
    )
    with hanging:
        request, reading = make_request(max_tokens=100), Reading()
        running = asyncio.create_task(reading.run(client, request))
        await until(lambda: len(reading.tokens) > 3)
        hanging.runner.may_run.clear()
        with RunningEngine(tmp_path / "b", redis_url, engine_id="b", batch_invariant=True):
            tokens = await running
            assert hanging.has_hung.is_set()
            assert reading.longest_gap_s < HANG_GAP_S
            assert [tokens] == await alone(client, [request])


def ticks_until_hung(watchdog: StepWatchdog, most: int = 1000) -> int:
    return next(i for i in range(1, most) if watchdog.tick())


def test_a_step_hangs_when_it_is_longer_than_the_limit() -> None:
    watchdog = StepWatchdog(limit_s=5.0)
    with watchdog.step():
        assert 5.0 <= ticks_until_hung(watchdog) * TICK_S <= 5.0 + 2 * TICK_S


def test_a_step_that_is_no_longer_than_one_that_ended_does_not_hang() -> None:
    watchdog = StepWatchdog(limit_s=5.0)
    with watchdog.step():
        assert not any(watchdog.tick() for _ in range(20))
    watchdog.tick()
    with watchdog.step():
        assert ticks_until_hung(watchdog) > 20


def test_between_steps_nothing_hangs() -> None:
    watchdog = StepWatchdog(limit_s=1.0)
    assert not any(watchdog.tick() for _ in range(100))
    for _ in range(100):
        with watchdog.step():
            assert not watchdog.tick()
