"""Who can write into Redis, and has not the secret, puts words into nobody's mouth."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
import redis

from engine.messages import Abort, FinishReason, OutputBatch, TokenOutput, Wake
from engine.transport import keys
from engine.transport.client import QueueClient
from engine.transport.codec import WIRE_VERSION, Codec
from engine.transport.server import EngineTransport
from tests.builders.damage import damaged
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until

FORGER = Codec("secret-of-a-forger")
NUM_FRAMES = 300


def output(request_id: str, tokens: list[int]) -> TokenOutput:
    return TokenOutput(
        request_id=request_id,
        epoch=1,
        index=0,
        token_ids=tokens,
        num_prompt_tokens=1,
        num_generated_tokens=len(tokens),
        finish_reason=FinishReason.STOP,
    )


def envelope(*parts: bytes) -> bytes:
    return WIRE_VERSION + msgspec.msgpack.encode({"engine_id": "engine-0", "outputs": list(parts)})


def lease(transport: EngineTransport, n: int = 1) -> list[str]:
    return [request.request_id for request in transport.lease(1000, 16, n)]


def refusal(server: redis.Redis) -> TokenOutput:
    [(_, fields)] = server.xrange(keys.out("api-test"))
    batch, errors = Codec(QUEUE_SECRET).decode_batch(fields[b"batch"])
    [answer] = batch.outputs
    assert not errors
    return answer


@pytest.fixture
def raw(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url, protocol=2)


def test_a_forged_request_is_not_run(
    driver: QueueDriver, transport: EngineTransport, raw: redis.Redis
) -> None:
    driver.enqueue(make_request(request_id="req_1"))
    forged = FORGER.encode(make_request(request_id="req_1", prompt=[6, 6, 6]))
    raw.hset(f"{keys.PREFIX}request:req_1", "message", forged)
    assert lease(transport) == []
    answer = refusal(raw)
    assert answer.error is not None and answer.error.code == "message_invalid"


@pytest.mark.parametrize("field", ["request_id", "tenant_id", "api_id"])
def test_a_request_of_somebody_else_is_not_run_in_this_ones_place(
    driver: QueueDriver, transport: EngineTransport, raw: redis.Redis, field: str
) -> None:
    request = make_request(request_id="req_1")
    driver.enqueue(request)
    other = msgspec.structs.replace(request, **{field: "another"})
    raw.hset(f"{keys.PREFIX}request:req_1", "message", Codec(QUEUE_SECRET).encode(other))
    assert lease(transport) == []
    answer = refusal(raw)
    assert answer.error is not None and answer.error.code == "message_invalid"


async def test_forged_outputs_are_not_heard(client: QueueClient, raw: redis.Redis) -> None:
    stream = await client.submit(make_request(request_id="req_1", prompt=[7], max_tokens=3))
    forged = FORGER.encode(output("req_1", [6, 6]))
    mine = Codec(QUEUE_SECRET).encode(output("req_1", [7, 7, 7]))
    raw.xadd(keys.out(client.api_id), {"batch": envelope(forged)})
    raw.xadd(keys.out(client.api_id), {"batch": envelope(forged, mine, forged)})
    async with asyncio.timeout(10):
        heard = [token async for each in stream for token in each.token_ids]
    assert heard == [7, 7, 7]  # which shows, too, that what has the secret is heard


def test_forged_control_messages_are_not_heard(
    transport: EngineTransport, raw: redis.Redis
) -> None:
    abort, wake = Abort(request_id="req_1", epoch=1), Wake()
    unsealed = WIRE_VERSION + msgspec.msgpack.encode(abort)
    mine = Codec(QUEUE_SECRET).encode(abort)
    raw.rpush(keys.control("engine-0"), FORGER.encode(abort), FORGER.encode(wake), unsealed, mine)
    assert transport.wait_control(1) == [abort]  # the one that has the secret


def test_what_a_script_tells_an_engine_is_sealed(
    driver: QueueDriver, transport: EngineTransport, raw: redis.Redis
) -> None:
    request = make_request(request_id="req_1")
    assert lease(transport) == []
    driver.enqueue(request)
    assert lease(transport) == ["req_1"]
    driver.requeue(msgspec.structs.replace(request, epoch=1), is_forced=True)
    assert lease(transport) == ["req_1"]
    driver.abort("req_1", epoch=2)
    said = raw.lrange(keys.control("engine-0"), 0, -1)
    codec = Codec(QUEUE_SECRET)
    assert [codec.decode_control(each) for each in said] == [
        Wake(),
        Abort(request_id="req_1", epoch=1),
        Abort(request_id="req_1", epoch=2),
    ]


async def test_readers_outlive_whatever_is_put_before_them(
    client: QueueClient, redis_url: str, raw: redis.Redis
) -> None:
    """Damaged and forged frames, in every place where a message may lie."""
    rng, sealing = random.Random(3), Codec(QUEUE_SECRET)
    sound = [
        envelope(sealing.encode(output("req_1", [6]))),
        sealing.encode(make_request(request_id="req_1")),
        sealing.encode(Abort(request_id="req_1", epoch=1)),
        sealing.encode(Wake()),
    ]
    with StubEngine(redis_url, engine_id="engine-0") as engine:
        for i in range(NUM_FRAMES):
            frame = damaged(rng.choice(sound), rng)
            raw.xadd(keys.out(client.api_id), {"batch": frame})
            raw.rpush(keys.control("engine-0"), frame)
            if i % 10 == 0:
                bad = await client.submit(make_request(request_id=f"req_{i}_bad", prompt=[6]))
                raw.hset(f"{keys.PREFIX}request:req_{i}_bad", "message", frame)
                bad.close()
        await until(lambda: raw.xlen(keys.out(client.api_id)) == 0)
        stream = await client.submit(make_request(prompt=[7], max_tokens=5))
        async with asyncio.timeout(10):
            heard = [token async for each in stream for token in each.token_ids]
        assert heard == [7] * 5 and engine.num_running == 0


def test_what_is_published_is_sealed(
    driver: QueueDriver, transport: EngineTransport, raw: redis.Redis
) -> None:
    driver.enqueue(make_request(request_id="req_1"))
    assert lease(transport) == ["req_1"]
    said = OutputBatch(engine_id="engine-0", outputs=[output("req_1", [7])])
    transport.publish({"api-test": said})
    [(_, fields)] = raw.xrange(keys.out("api-test"))
    assert Codec(QUEUE_SECRET).decode_batch(fields[b"batch"]) == (said, [])
    [(_, record)] = raw.xrange(keys.USAGE)
    assert Codec(QUEUE_SECRET).decode_usage(record[b"record"]).request_id == "req_1"
