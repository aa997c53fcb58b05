"""Links to Redis that are slow, dead or wrong: streams go on, or move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from engine.transport.client import QueueClient
from engine.transport.output_stream import OutputStream
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.relay import Relay
from tests.builders.requests import make_request
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until

API_ID = "api-test"
NUM_TOKENS = 60


@pytest.fixture
async def relay(redis_url: str) -> AsyncIterator[Relay]:
    port = urlsplit(redis_url).port
    assert port is not None
    async with Relay(lambda: port) as relay:
        yield relay


@pytest.fixture
def relayed_url(redis_url: str, relay: Relay) -> str:
    return redis_url.replace(f":{urlsplit(redis_url).port}/", f":{relay.port}/")


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[QueueClient]:
    client = QueueClient(redis_url, API_ID, secret=QUEUE_SECRET)
    await client.start()
    yield client
    await client.close()


async def tokens_of(stream: OutputStream) -> list[int]:
    tokens: list[int] = []
    async with asyncio.timeout(30):
        async for output in stream:
            assert output.error is None, output.error
            tokens += output.token_ids
    return tokens


async def test_an_engine_behind_a_slow_link_keeps_its_requests(
    client: QueueClient, redis_url: str, relay: Relay, relayed_url: str
) -> None:
    relay.slow_down(0.1)  # 200 ms there and back
    far = StubEngine(relayed_url, engine_id="far", step_s=0.01)
    await asyncio.to_thread(far.start)
    stream = await client.submit(make_request(prompt=[7], max_tokens=10))
    await until(lambda: far.num_running == 1)
    with StubEngine(redis_url, engine_id="near") as near:
        assert await tokens_of(stream) == [7] * 10
        assert near.requests == []
    await asyncio.to_thread(far.stop)


@pytest.mark.parametrize("fault", [Relay.silence, Relay.cut])
async def test_requests_of_an_engine_that_redis_cannot_hear_move(
    client: QueueClient, redis_url: str, relay: Relay, relayed_url: str, fault: object
) -> None:
    far = StubEngine(relayed_url, engine_id="far", step_s=0.02)
    await asyncio.to_thread(far.start)
    stream = await client.submit(make_request(prompt=[7], max_tokens=NUM_TOKENS))
    await until(lambda: far.num_published_batches > 3)
    assert callable(fault)
    with StubEngine(redis_url, engine_id="near", step_s=0.02) as near:
        fault(relay)
        assert await tokens_of(stream) == [7] * NUM_TOKENS
        assert [each.num_deaths for each in near.requests] == [1]
        relay.restore()  # what was on its way arrives, and is not heard
        await until(lambda: len(far.aborted) == 1)
    await asyncio.to_thread(far.stop)


async def test_an_api_process_behind_a_link_that_breaks_loses_no_stream(
    redis_url: str, relay: Relay, relayed_url: str
) -> None:
    client = QueueClient(relayed_url, API_ID, secret=QUEUE_SECRET)
    await client.start()
    with StubEngine(redis_url, step_s=0.02) as engine:
        stream = await client.submit(make_request(prompt=[7], max_tokens=NUM_TOKENS))
        await until(lambda: engine.num_published_batches > 3)
        relay.cut()
        await asyncio.sleep(0.6)
        relay.restore()
        assert await tokens_of(stream) == [7] * NUM_TOKENS
        assert engine.aborted == []
    await client.close()


async def test_bits_that_flip_on_an_engines_link_change_no_token(
    client: QueueClient, redis_url: str, relay: Relay, relayed_url: str
) -> None:
    async def has_moved() -> bool:
        """Whether damage was seen in a stream's own bytes, and not only in the protocol's."""
        far = StubEngine(relayed_url, engine_id="far", step_s=0.02)
        await asyncio.to_thread(far.start)
        streams = [
            await client.submit(make_request(prompt=[7 + i], max_tokens=NUM_TOKENS))
            for i in range(4)
        ]
        await until(lambda: far.num_published_batches > 3)

        async def flip() -> None:
            while not all(stream.is_finished for stream in streams):
                relay.flip(1)
                await asyncio.sleep(0.05)

        with StubEngine(redis_url, engine_id="near", step_s=0.02) as near:
            flipping = asyncio.create_task(flip())
            heard = await asyncio.gather(*map(tokens_of, streams))
            await flipping
        assert heard == [[7 + i] * NUM_TOKENS for i in range(4)]
        await asyncio.to_thread(far.stop)
        return bool(near.requests)

    for _ in range(8):
        if await has_moved():
            return
    raise AssertionError("no damage moved a stream")


async def test_the_relay_flips_bits_when_told_to() -> None:
    """The control of the faults: the proxy does what it says."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Relay(lambda: port) as relay:
        answers = []
        for num in (0, 1):
            relay.flip(num)
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(b"abcd")
            answers.append(await reader.read(100))
            writer.close()
    assert answers == [b"abcd", b"abbd"]
