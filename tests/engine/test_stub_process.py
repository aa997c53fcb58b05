"""`python -m tests.stub_engine` serves a real queue with the real loop, and ends when told to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from engine.messages import Abort, AdapterRef, EngineRequest
from engine.transport import keys
from engine.transport.client import QueueClient
from engine.transport.codec import Codec
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.waiting import wait_until
from tests.stub_engine.base import stub_base
from tests.stub_engine.runner import generate

ENGINE_ID = "stub-a"
HEARTBEAT = f"{keys.PREFIX}engine:{ENGINE_ID}"
COLD = AdapterRef(tenant_id="ten_a", digest="sha256:" + "a" * 64, locator="none")
FORGERS = "secret-of-a-forger"


@contextmanager
def stub_process(redis_url: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.stub_engine", "--redis-url", redis_url]
    process = subprocess.Popen(
        [*command, "--engine-id", ENGINE_ID, *options],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TENFOLD_QUEUE_SECRET": QUEUE_SECRET},
        stdout=subprocess.DEVNULL,
    )
    try:
        with redis.Redis.from_url(redis_url, protocol=2) as server:
            wait_until(lambda: bool(server.exists(HEARTBEAT)), timeout_s=60)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[QueueClient]:
    client = QueueClient(redis_url, "api-test", secret=QUEUE_SECRET)
    await client.start()
    yield client
    await client.close()


async def collect(client: QueueClient, request: EngineRequest) -> list[int]:
    tokens: list[int] = []
    async for output in await client.submit(request):
        assert output.error is None, output.error
        tokens += output.token_ids
    return tokens


@pytest.mark.parametrize("max_in_flight", ["1", "2"])
async def test_a_stub_process_streams_the_hashes_of_its_requests(
    client: QueueClient, redis_url: str, max_in_flight: str
) -> None:
    requests = [
        make_request(prompt=[5 + i] * (9 * i + 1), adapter=COLD if i % 2 else None, max_tokens=20)
        for i in range(6)
    ]
    options = ("--step-ms", "1", "--load-ms", "20", "--max-in-flight", max_in_flight)
    with stub_process(redis_url, *options) as process:
        found = await asyncio.gather(*(collect(client, request) for request in requests))
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    vocab_size = stub_base().vocab_size
    assert found == [
        generate(
            request.prompt_token_ids,
            request.adapter.digest if request.adapter else None,
            request.sampling.max_tokens,
            vocab_size,
        )
        for request in requests
    ]


@pytest.mark.parametrize(("secret", "last_epoch"), [(FORGERS, 1), (QUEUE_SECRET, 2)])
async def test_a_forged_abort_is_not_heard_and_a_sealed_one_moves_a_stream(
    client: QueueClient, redis_url: str, secret: str, last_epoch: int
) -> None:
    request = make_request(prompt=[5] * 9, max_tokens=60)
    with stub_process(redis_url, "--step-ms", "10"):
        stream, tokens = await client.submit(request), []
        abort = Codec(secret).encode(Abort(request_id=request.request_id, epoch=1))
        with redis.Redis.from_url(redis_url, protocol=2) as server:
            async with asyncio.timeout(20):
                async for output in stream:
                    assert output.error is None, output.error
                    if not tokens:
                        server.rpush(keys.control(ENGINE_ID), abort)
                    tokens += output.token_ids
    assert stream.epoch == last_epoch
    vocab_size = stub_base().vocab_size
    whole = generate(request.prompt_token_ids, None, request.sampling.max_tokens, vocab_size)
    assert tokens == whole
