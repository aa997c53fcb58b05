"""A request goes on where its engine died, drains, or was forgotten by Redis; once at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

import msgspec
import pytest
import redis

from engine.messages import (
    AdapterRef,
    EngineRequest,
    FinishReason,
    OutputBatch,
    TokenOutput,
)
from engine.transport import keys
from engine.transport.client import QueueClient
from engine.transport.output_stream import OutputStream
from engine.transport.server import EngineStatus, EngineTransport
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until

API_ID = "api-test"
WARM_SPARE_GAP_S = 2.0
ADAPTER = AdapterRef(tenant_id="ten_a", digest="sha256:" + "a" * 64, locator="here")


def tokens_of(outputs: Sequence[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def expected(request: EngineRequest) -> list[int]:
    return list(islice(cycle(request.prompt_token_ids), request.sampling.max_tokens))


class Follower:
    """Reads a stream as a client does; `longest_gap_s` is the longest it waited for a token."""

    def __init__(self, stream: OutputStream) -> None:
        self.outputs: list[TokenOutput] = []
        self.longest_gap_s = 0.0
        self._task = asyncio.create_task(self._follow(stream))

    async def ended(self) -> list[int]:
        """The tokens, of an answer that ended well."""
        async with asyncio.timeout(30):
            await self._task
        assert self.outputs[-1].error is None, self.outputs[-1].error
        assert [each for each in self.outputs if each.finish_reason] == [self.outputs[-1]]
        return tokens_of(self.outputs)

    async def error_code(self) -> str | None:
        async with asyncio.timeout(30):
            await self._task
        error = self.outputs[-1].error
        return None if error is None else error.code

    async def _follow(self, stream: OutputStream) -> None:
        heard_at = time.monotonic()
        async for output in stream:
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - heard_at)
            heard_at = now
            self.outputs.append(output)


@pytest.fixture
def spare(redis_url: str) -> Iterator[StubEngine]:
    """Not yet started: it is no spare while a test still places its requests."""
    engine = StubEngine(redis_url, engine_id="spare", step_s=0.01)
    yield engine
    engine.stop()


async def follow_all(client: QueueClient, requests: Sequence[EngineRequest]) -> list[Follower]:
    return [Follower(await client.submit(request)) for request in requests]


def some_requests(max_tokens: int = 60) -> list[EngineRequest]:
    return [
        make_request(
            f"ten_{i % 3}", prompt=[i, 100 + i, 200 + i], max_tokens=max_tokens, adapter=ADAPTER
        )
        for i in range(8)
    ]


async def all_have(followers: Sequence[Follower], num_outputs: int) -> None:
    await until(lambda: all(len(each.outputs) >= num_outputs for each in followers))


async def test_streams_of_a_killed_engine_go_on_at_a_warm_spare(
    client: QueueClient, redis_url: str, spare: StubEngine, server: redis.Redis
) -> None:
    requests = some_requests()
    dying = StubEngine(redis_url, engine_id="dying", step_s=0.01)
    dying.start()
    followers = await follow_all(client, requests)
    await all_have(followers, 5)
    spare.start()
    await asyncio.to_thread(dying.kill)
    assert [await each.ended() for each in followers] == [expected(each) for each in requests]
    assert max(each.longest_gap_s for each in followers) < WARM_SPARE_GAP_S
    taken = {each.request_id: each for each in spare.requests}
    for request in requests:
        moved = taken[request.request_id]
        assert len(moved.delivered_token_ids) >= 5
        assert (moved.epoch, moved.num_deaths, moved.adapter) == (2, 1, ADAPTER)
        assert moved.sampling == request.sampling
    await until(lambda: server.hlen(keys.LEASES) == 0)


async def test_control_without_a_spare_the_streams_do_not_go_on(redis_url: str) -> None:
    client = QueueClient(redis_url, API_ID, failover_timeout_s=0.5, secret=QUEUE_SECRET)
    await client.start()
    dying = StubEngine(redis_url, engine_id="dying", step_s=0.01)
    dying.start()
    request = make_request(max_tokens=100_000)
    [follower] = await follow_all(client, [request])
    await all_have([follower], 1)
    await asyncio.to_thread(dying.kill)
    assert await follower.error_code() == "engine_lost"
    assert client.num_in_flight == 0
    await client.close()


async def test_a_request_is_not_run_again_while_its_engine_lives(
    client: QueueClient, redis_url: str, spare: StubEngine
) -> None:
    with StubEngine(redis_url, engine_id="slow") as slow:
        [follower] = await follow_all(client, [make_request(max_tokens=3)])
        slow.pause()
        spare.start()
        await asyncio.sleep(2.0)
        slow.resume()
        await follower.ended()
    assert spare.requests == []


async def test_an_engine_that_lost_a_request_is_not_heard_of_it_and_stops(
    client: QueueClient, redis_url: str, spare: StubEngine, transport: EngineTransport
) -> None:
    request = make_request(prompt=[7], max_tokens=50)
    follower = Follower(await client.submit(request))
    [zombies] = transport.lease(1000, 16, 8)
    transport.publish({API_ID: said(zombies, 0, [7])})
    await all_have([follower], 1)
    spare.start()
    await until(lambda: len(spare.requests) == 1, timeout_s=5)  # no heartbeat: dead
    transport.heartbeat(EngineStatus())  # and alive again, with what it had
    transport.publish({API_ID: said(zombies, 1, [666, 666])})
    assert [(each.request_id, each.epoch) for each in transport.take_unheard()] == [
        (request.request_id, 1)
    ]
    assert transport.take_unheard() == []
    assert await follower.ended() == [7] * 50


def said(request: EngineRequest, index: int, tokens: list[int]) -> OutputBatch:
    output = TokenOutput(
        request_id=request.request_id,
        epoch=request.epoch,
        index=index,
        token_ids=tokens,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_generated_tokens=index + len(tokens),
    )
    return OutputBatch(engine_id="engine-0", outputs=[output])


async def test_control_the_owner_of_a_lease_is_heard(
    client: QueueClient, transport: EngineTransport
) -> None:
    stream = await client.submit(make_request(prompt=[7], max_tokens=50))
    [request] = transport.lease(1000, 16, 8)
    transport.publish({API_ID: said(request, 0, [7, 8])})
    assert (await anext(stream)).token_ids == [7, 8]
    assert transport.take_unheard() == []


async def test_a_zombies_bill_is_not_written(
    driver: QueueDriver, redis_url: str, transport: EngineTransport, server: redis.Redis
) -> None:
    request = make_request(max_tokens=500)
    driver.enqueue(request)
    [old] = transport.lease(1000, 16, 8)
    moved = msgspec.structs.replace(request, epoch=1, delivered_token_ids=[1, 2])
    assert driver.requeue(moved, is_forced=True) == "queued"
    transport.publish({API_ID: said(old, 0, [1] * 100)})
    assert server.xlen(keys.USAGE) == 0
    [again] = transport.lease(1000, 16, 8)
    assert again.delivered_token_ids == [1, 2] and again.epoch == 2
    transport.publish({API_ID: said(again, 2, [1] * 100)})
    assert server.xlen(keys.USAGE) == 1


async def test_a_repeated_requeue_does_nothing(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    request = make_request()
    driver.enqueue(request)
    transport.lease(1000, 16, 8)
    moved = msgspec.structs.replace(request, epoch=1)
    assert driver.requeue(moved) == "alive"
    assert driver.requeue(moved, is_forced=True) == "queued"
    assert driver.requeue(moved, is_forced=True) == "known"
    assert len(transport.lease(1000, 16, 8)) == 1
    assert driver.requeue(moved, is_forced=True) == "known"
    assert driver.requeue(moved) == "known"
    assert transport.lease(1000, 16, 8) == []


async def test_a_request_that_moves_keeps_its_place_in_its_tenants_queue(
    driver: QueueDriver, transport: EngineTransport
) -> None:
    first, second = make_request(), make_request()
    driver.enqueue(first)
    transport.lease(1000, 16, 1)
    driver.enqueue(second)
    driver.requeue(msgspec.structs.replace(first, epoch=1), is_forced=True)
    [leased] = transport.lease(1000, 16, 1)
    assert leased.request_id == first.request_id


async def test_what_is_handed_over_moves_at_once_and_counts_no_death(
    client: QueueClient, transport: EngineTransport, spare: StubEngine
) -> None:
    request = make_request(prompt=[7], max_tokens=20)
    follower = Follower(await client.submit(request))
    [leased] = transport.lease(1000, 16, 8)
    transport.publish({API_ID: said(leased, 0, [7, 7])})
    spare.start()
    last = replace_finish(said(leased, 0, []))
    handed_over_at = time.monotonic()
    transport.publish({API_ID: last})
    await until(lambda: len(spare.requests) == 1)
    assert time.monotonic() - handed_over_at < 0.5
    assert (spare.requests[0].num_deaths, spare.requests[0].delivered_token_ids) == (0, [7, 7])
    assert await follower.ended() == [7] * 20


def replace_finish(batch: OutputBatch) -> OutputBatch:
    [output] = batch.outputs
    output = msgspec.structs.replace(output, finish_reason=FinishReason.HAND_OVER)
    return OutputBatch(engine_id=batch.engine_id, outputs=[output])


async def test_a_hand_over_that_was_not_heard_is_seen_all_the_same(
    client: QueueClient, transport: EngineTransport, spare: StubEngine, server: redis.Redis
) -> None:
    request = make_request(prompt=[7], max_tokens=20)
    follower = Follower(await client.submit(request))
    [leased] = transport.lease(1000, 16, 8)
    server.hset(keys.LEASES, request.request_id, f"{leased.epoch}::engine-0")
    spare.start()
    assert await follower.ended() == [7] * 20
    assert spare.requests[0].num_deaths == 0


async def test_a_redis_that_loses_its_data_loses_no_request(
    client: QueueClient, redis_url: str, server: redis.Redis
) -> None:
    requests = some_requests(max_tokens=100)
    with StubEngine(redis_url, step_s=0.01, max_running=4) as engine:
        followers = await follow_all(client, requests)  # half of them wait
        await until(lambda: engine.num_running == 4)
        await until(lambda: sum(len(each.outputs) > 5 for each in followers) == 4)
        for _ in range(2):
            server.flushall()
            await asyncio.sleep(0.4)
        assert [await each.ended() for each in followers] == [expected(each) for each in requests]
        assert {each.num_deaths for each in engine.requests} == {0}


async def test_an_outage_of_redis_is_no_engines_death(
    client: QueueClient, redis_url: str, server: redis.Redis
) -> None:
    """The heartbeats have expired when it is back, though the engine lives."""
    with StubEngine(redis_url, step_s=0.01) as engine:
        [follower] = await follow_all(client, [make_request(prompt=[7], max_tokens=200)])
        await all_have([follower], 5)
        server.execute_command("CLIENT", "PAUSE", "2000", "ALL")
        assert await follower.ended() == [7] * 200
        assert [each.num_deaths for each in engine.requests] == [0]


async def test_closing_a_stream_that_moves_leaves_nothing_behind(
    client: QueueClient, transport: EngineTransport, driver: QueueDriver, server: redis.Redis
) -> None:
    requests = [make_request() for _ in range(20)]
    streams = [await client.submit(request) for request in requests]
    transport.lease(1000, 16, 20)
    await asyncio.sleep(1.0)
    for i, stream in enumerate(streams):
        await asyncio.sleep(0.02 * (i % 3))
        stream.close()
    await until(lambda: set(driver.states(*(each.request_id for each in requests))) == {"u"})
    await until(lambda: server.keys(f"{keys.PREFIX}queue:*") == [])
    assert client.num_in_flight == 0
