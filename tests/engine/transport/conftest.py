"""Both ends of a queue on a real Valkey; see also the builders of requests and stub engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from engine.transport.client import QueueClient
from engine.transport.server import EngineTransport
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET

API_ID = "api-test"


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    """A plain client, to look at what the queue keeps."""
    with redis.Redis.from_url(redis_url, decode_responses=True, protocol=2) as client:
        yield client


@pytest.fixture
def driver(redis_url: str) -> Iterator[QueueDriver]:
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        yield QueueDriver(client)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[QueueClient]:
    queue = QueueClient(redis_url, API_ID, secret=QUEUE_SECRET)
    await queue.start()
    yield queue
    await queue.close()


@pytest.fixture
def transport(redis_url: str) -> Iterator[EngineTransport]:
    engine = EngineTransport(redis_url, "engine-0", secret=QUEUE_SECRET)
    yield engine
    engine.close()
