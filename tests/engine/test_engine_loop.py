"""The engine process's loop on a real queue: tokens stream out, aborts arrive, pages come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from engine.messages import AdapterRef, EngineRequest, FinishReason, UsageAuthor, UsageRecord
from engine.transport import keys
from engine.transport.client import QueueClient
from engine.transport.codec import Codec
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.running_engine import RunningEngine
from tests.builders.waiting import until


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
        assert output.index == len(tokens)
        tokens += output.token_ids
    return tokens


async def test_tokens_stream_from_the_engine_to_their_requests(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    prompts = [[3, 4, 5], [6] * 30, [7, 8]]
    with RunningEngine(tmp_path, redis_url) as engine:
        solo = [await collect(client, make_request(prompt=p, max_tokens=12)) for p in prompts]
        together = await asyncio.gather(
            *(collect(client, make_request(prompt=p, max_tokens=12)) for p in prompts)
        )
        assert list(together) == solo
        assert [len(tokens) for tokens in solo] == [12, 12, 12]
        await until(lambda: engine.is_empty)


async def test_more_requests_than_the_engine_has_room_for_all_finish(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    with RunningEngine(tmp_path, redis_url, max_num_seqs=2, num_look_ahead=1):
        answers = await asyncio.gather(
            *(collect(client, make_request(f"ten_{i % 3}", max_tokens=5)) for i in range(20))
        )
    assert [len(tokens) for tokens in answers] == [5] * 20


async def test_a_client_that_goes_away_frees_its_pages(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    with RunningEngine(tmp_path, redis_url) as engine:
        stream = await client.submit(make_request(max_tokens=400))
        async for _ in stream:
            break
        stream.close()
        await until(lambda: engine.is_empty)
        assert len(await collect(client, make_request(max_tokens=3))) == 3


def said_of(redis_url: str, request_id: str) -> list[UsageRecord]:
    """What is on the usage stream of one request."""
    with redis.Redis.from_url(redis_url, protocol=2) as server:
        entries = server.xrange(keys.USAGE)
    codec = Codec(QUEUE_SECRET)
    records = [codec.decode_usage(fields[b"record"]) for _, fields in entries]
    return [record for record in records if record.request_id == request_id]


async def test_what_a_request_used_is_said_once_and_is_what_came(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    whole, left = make_request(max_tokens=5), make_request(max_tokens=400)
    with RunningEngine(tmp_path, redis_url) as engine:
        num_came = len(await collect(client, whole))
        stream = await client.submit(left)
        async for _ in stream:
            break
        stream.close()
        await until(lambda: engine.is_empty)
        await until(lambda: len(said_of(redis_url, left.request_id)) == 2)
    [end] = said_of(redis_url, whole.request_id)
    assert (end.num_generated_tokens, end.finish_reason) == (num_came, "length")
    by_author = {record.author: record for record in said_of(redis_url, left.request_id)}
    by_engine, by_api = by_author[UsageAuthor.ENGINE], by_author[UsageAuthor.API]
    assert by_engine.finish_reason == by_api.finish_reason == "abort"
    assert 1 <= by_api.num_generated_tokens <= by_engine.num_generated_tokens < 400


async def test_a_missing_adapter_is_answered_and_others_go_on(
    client: QueueClient, redis_url: str, tmp_path: Path
) -> None:
    nowhere = AdapterRef(
        tenant_id="ten_a", digest=f"sha256:{'0' * 64}", locator=f"ten_a/{'0' * 64}"
    )
    with RunningEngine(tmp_path, redis_url):
        stream = await client.submit(make_request(adapter=nowhere))
        outputs = [output async for output in stream]
        assert outputs[-1].finish_reason is FinishReason.ERROR
        assert outputs[-1].error is not None and outputs[-1].error.code == "adapter_missing"
        assert len(await collect(client, make_request(max_tokens=3))) == 3
