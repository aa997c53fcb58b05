"""The API's end against stub engines on a real server: streams, aborts, and every way to fail."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import redis

from app.launcher.ports import free_port
from app.launcher.valkey import ValkeyServer
from engine.messages import EngineError, EngineRequest, FinishReason, TokenOutput
from engine.transport import keys
from engine.transport.client import MAX_ABORTS_AT_ONCE, QueueClient
from engine.transport.errors import QueueUnavailableError
from engine.transport.output_stream import OutputStream
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until

NAMES_LEFT = (
    "vtc",
    "level",
    "arrivals",
    "service",
    "served",
    "generation",
    "out:api-test",
    "api:api-test",
    "usage",
)
LEFT_FOR_GOOD = {f"{keys.PREFIX}{name}" for name in NAMES_LEFT}


async def drain(stream: OutputStream) -> list[TokenOutput]:
    async with asyncio.timeout(20):
        return [output async for output in stream]


def token_ids(outputs: Sequence[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def error_code(outputs: Sequence[TokenOutput]) -> str | None:
    assert outputs[-1].finish_reason is not None
    assert all(output.finish_reason is None for output in outputs[:-1])
    return outputs[-1].error.code if outputs[-1].error else None


async def test_a_request_comes_back_token_by_token(client: QueueClient, redis_url: str) -> None:
    with StubEngine(redis_url, reply=lambda request: [7, 8, 9]):
        outputs = await drain(await client.submit(make_request(max_tokens=10)))
    assert token_ids(outputs) == [7, 8, 9]
    assert [output.index for output in outputs] == [0, 1, 2]
    assert outputs[-1].finish_reason is FinishReason.STOP


async def test_many_requests_each_get_their_own_answer_and_leave_nothing(
    client: QueueClient, redis_url: str, server: redis.Redis
) -> None:
    requests = [
        make_request(f"ten_{i % 7}", prompt=[1000 + i, i], max_tokens=1 + i % 9) for i in range(300)
    ]

    async def run(request: EngineRequest) -> None:
        outputs = await drain(await client.submit(request))
        expected = [request.prompt_token_ids[i % 2] for i in range(request.sampling.max_tokens)]
        assert token_ids(outputs) == expected
        assert outputs[-1].finish_reason is FinishReason.LENGTH

    with (
        StubEngine(redis_url, engine_id="one", max_running=16),
        StubEngine(redis_url, engine_id="two", max_running=16),
    ):
        await asyncio.gather(*(run(request) for request in requests))
    await until(lambda: server.xlen(keys.out("api-test")) == 0)
    assert set(server.keys("*")) <= LEFT_FOR_GOOD
    assert client.num_in_flight == 0


async def test_concurrent_streams_share_an_entry_per_step(
    client: QueueClient, redis_url: str
) -> None:
    with StubEngine(redis_url, step_s=0.01) as engine:
        engine.pause()
        streams = [await client.submit(make_request(max_tokens=20)) for _ in range(30)]
        await until(lambda: engine.num_running == 30)
        engine.resume()
        await asyncio.gather(*(drain(stream) for stream in streams))
    assert engine.num_published_batches == 20  # not 600


async def test_an_engines_refusal_reaches_the_stream(client: QueueClient, redis_url: str) -> None:
    refusal = EngineError(code="adapter_corrupt", message="The adapter is damaged.")
    with StubEngine(redis_url, reply=lambda request: refusal):
        outputs = await drain(await client.submit(make_request()))
    assert outputs[-1].error == refusal


async def test_closing_a_running_stream_aborts_it(
    client: QueueClient, redis_url: str, driver: QueueDriver
) -> None:
    request = make_request(max_tokens=100_000)
    with StubEngine(redis_url, step_s=0.01) as engine:
        async with await client.submit(request) as stream:
            await anext(stream)
        await until(lambda: engine.aborted == [request.request_id])
        await until(lambda: driver.states(request.request_id) == "u")


async def test_closing_a_waiting_stream_takes_it_out_of_the_queue(
    client: QueueClient, driver: QueueDriver
) -> None:
    request = make_request()
    stream = await client.submit(request)
    assert driver.states(request.request_id) == "q"
    stream.close()
    await until(lambda: driver.states(request.request_id) == "u")


async def test_a_cancelled_submit_leaves_nothing_behind(
    client: QueueClient, driver: QueueDriver, server: redis.Redis
) -> None:
    requests = [make_request() for _ in range(50)]
    tasks = [asyncio.create_task(client.submit(request)) for request in requests]
    for i, task in enumerate(tasks):
        await asyncio.sleep(0.0002 * (i % 3))
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result().close()
    await until(lambda: set(driver.states(*(r.request_id for r in requests))) == {"u"})
    await until(lambda: server.keys(f"{keys.PREFIX}queue:*") == [])
    assert client.num_in_flight == 0


async def test_who_goes_at_once_is_aborted_at_once_the_first_first(
    client: QueueClient, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them took a round trip of its own, and the first one waited for all others'."""
    streams = [await client.submit(make_request()) for _ in range(MAX_ABORTS_AT_ONCE + 50)]
    abort, batches = client._abort, list[list[str]]()

    async def note(aborts: Mapping[str, tuple[str, int]]) -> list[bytes]:
        batches.append(list(aborts))
        return await abort(aborts)

    monkeypatch.setattr(client, "_abort", note)
    names = [stream.request_id for stream in streams]
    for stream in streams:
        stream.close()
    await until(lambda: set(driver.states(*names)) == {"u"})
    assert batches == [names[:MAX_ABORTS_AT_ONCE], names[MAX_ABORTS_AT_ONCE:]]


async def test_an_abort_is_not_lost_with_the_task_that_sends_it(
    redis_url: str, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = QueueClient(redis_url, "api-closing", secret=QUEUE_SECRET)
    await client.start()
    stream = await client.submit(make_request(api_id="api-closing"))
    abort, is_sending = client._abort, asyncio.Event()

    async def hang(aborts: Mapping[str, tuple[str, int]]) -> list[bytes]:
        monkeypatch.setattr(client, "_abort", abort)
        is_sending.set()
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(client, "_abort", hang)
    stream.close()
    await is_sending.wait()
    await client.close()
    assert driver.states(stream.request_id) == "u"


async def test_a_slow_engine_that_lives_is_waited_for(client: QueueClient, redis_url: str) -> None:
    """The control of the test below: silence alone ends nothing."""
    with StubEngine(redis_url) as engine:
        engine.pause()
        stream = await client.submit(make_request(max_tokens=2), queue_timeout_s=0.5)
        task = asyncio.create_task(drain(stream))
        done, _ = await asyncio.wait([task], timeout=2.5)
        assert not done
        engine.resume()
        assert error_code(await task) is None


async def test_what_no_engine_takes_times_out(client: QueueClient, driver: QueueDriver) -> None:
    request = make_request()
    outputs = await drain(await client.submit(request, queue_timeout_s=0.6))
    assert error_code(outputs) == "queue_timeout"
    assert driver.states(request.request_id) == "u"


async def test_aborting_reaches_an_engine_whose_lease_was_lost(
    client: QueueClient, server: redis.Redis, redis_url: str
) -> None:
    request = make_request(max_tokens=100_000)
    with StubEngine(redis_url, step_s=0.01) as engine:
        stream = await client.submit(request)
        await anext(stream)
        server.delete(keys.LEASES, f"{keys.PREFIX}request:{request.request_id}")
        stream.close()
        await until(lambda: engine.aborted == [request.request_id])


async def test_an_unreadable_entry_does_not_stop_the_reader(
    client: QueueClient, server: redis.Redis, redis_url: str
) -> None:
    server.xadd(keys.out("api-test"), {"batch": "nonsense"})
    with StubEngine(redis_url):
        assert error_code(await drain(await client.submit(make_request()))) is None


async def test_output_for_nobody_is_ignored(client: QueueClient, redis_url: str) -> None:
    with StubEngine(redis_url) as engine:
        driver_request = make_request(request_id="nobodys", api_id="api-test")
        with redis.Redis.from_url(redis_url, protocol=2) as raw:
            QueueDriver(raw).enqueue(driver_request)
        await until(lambda: "nobodys" in [request.request_id for request in engine.requests])
        assert error_code(await drain(await client.submit(make_request()))) is None


async def test_closing_the_client_aborts_what_is_in_flight(
    redis_url: str, driver: QueueDriver
) -> None:
    client = QueueClient(redis_url, "api-closing", secret=QUEUE_SECRET)
    await client.start()
    request = make_request(api_id="api-closing")
    stream = await client.submit(request)
    await client.close()
    assert error_code(await drain(stream)) == "server_shutting_down"
    assert driver.states(request.request_id) == "u"


async def test_without_redis_a_submit_fails_at_once_and_start_does_not() -> None:
    client = QueueClient(f"redis://127.0.0.1:{free_port()}/0", "api-test", secret=QUEUE_SECRET)
    async with asyncio.timeout(5):
        await client.start()
        assert not client.is_connected
        with pytest.raises(QueueUnavailableError):
            await client.submit(make_request())
        with pytest.raises(QueueUnavailableError):
            await client.num_engines()
        assert client.num_in_flight == 0
        await client.close()


async def test_service_returns_when_redis_does(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path, password="test", durable=False, port=free_port())
    await asyncio.to_thread(server.start)
    client = QueueClient(server.url, "api-test", secret=QUEUE_SECRET)
    await client.start()
    with StubEngine(server.url) as engine:
        assert error_code(await drain(await client.submit(make_request()))) is None
        engine.pause()
        waiting = await client.submit(make_request())
        await until(lambda: engine.num_running == 1)
        await asyncio.to_thread(server.stop)
        await until(lambda: not client.is_connected)
        await asyncio.to_thread(server.start)
        await until(lambda: client.is_connected)
        engine.resume()
        assert error_code(await drain(waiting)) is None
        assert error_code(await drain(await client.submit(make_request()))) is None
    await client.close()
    await asyncio.to_thread(server.stop)


async def test_a_frozen_redis_delays_streams_and_breaks_none(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path, password="test", durable=False)
    await asyncio.to_thread(server.start)
    assert server.child is not None and server.child.pid is not None
    client = QueueClient(server.url, "api-test", secret=QUEUE_SECRET)
    await client.start()
    with StubEngine(server.url, step_s=0.01) as engine:
        stream = await client.submit(make_request(prompt=[5], max_tokens=100))
        await anext(stream)
        os.kill(server.child.pid, signal.SIGSTOP)
        await asyncio.sleep(0.5)  # shorter than what an engine may be silent
        os.kill(server.child.pid, signal.SIGCONT)
        outputs = await drain(stream)
        assert error_code(outputs) is None
        assert len(token_ids(outputs)) == 99
        assert engine.aborted == []
    await client.close()
    await asyncio.to_thread(server.stop)
