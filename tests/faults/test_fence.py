"""Negative controls of the fences: what the checker sees when a zombie is heard."""

from __future__ import annotations

import asyncio

import pytest

from engine.messages import EngineRequest, OutputBatch, TokenOutput
from engine.transport import scripts
from engine.transport.client import QueueClient
from engine.transport.output_stream import OutputStream
from engine.transport.server import EngineTransport
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until
from tests.faults.history import Answer, Call, Outcome, Row, Verdict, judge

API_ID = "api-test"
NUM_TOKENS = 30
SOURCE_FENCE = "return redis.call('HGET', leases, request) == epoch .. ':' .. boot .. ':' .. engine"
ANSWERS = {"q": Answer(" ".join(["7"] * NUM_TOKENS), NUM_TOKENS, "length")}


def without_fence(name: str) -> str:
    """A build of the scripts in which everybody owns every lease."""
    text = scripts.read_script(name)
    assert name != "publish" or SOURCE_FENCE in text
    return text.replace(SOURCE_FENCE, "return true")


async def listen(call: Call, stream: OutputStream) -> None:
    async for output in stream:
        call.pieces += map(str, output.token_ids)
        if output.finish_reason is not None:
            call.finish_reasons.append(output.finish_reason.value)
            call.num_ends, call.outcome = 1, Outcome.OK
            call.num_tokens = output.num_generated_tokens
    call.pieces = [" ".join(call.pieces)]


def said(request: EngineRequest, index: int, tokens: list[int]) -> dict[str, OutputBatch]:
    output = TokenOutput(
        request_id=request.request_id,
        epoch=request.epoch,
        index=index,
        token_ids=tokens,
        num_prompt_tokens=1,
        num_generated_tokens=index + len(tokens),
    )
    return {API_ID: OutputBatch(engine_id="zombie", outputs=[output])}


async def judged(redis_url: str, *, is_reader_open: bool) -> Verdict:
    """One request; its engine falls silent, loses it, and speaks again before the next one does."""
    client = QueueClient(redis_url, API_ID, secret=QUEUE_SECRET)
    await client.start()
    zombie = EngineTransport(redis_url, "zombie", secret=QUEUE_SECRET)
    request = make_request(prompt=[7], max_tokens=NUM_TOKENS)
    stream = await client.submit(request)
    call = Call("q", 0.0, request_id=request.request_id)
    listening = asyncio.create_task(listen(call, stream))
    [leased] = zombie.lease(1000, 16, 1)
    zombie.publish(said(leased, 0, [7]))
    with StubEngine(redis_url, engine_id="next", step_s=0.01) as heir:
        heir.pause()
        await until(lambda: heir.num_running == 1)
        if is_reader_open:
            stream.epoch = 0
        zombie.publish(said(leased, 1, [6, 6, 6]))
        await asyncio.sleep(0.2)
        heir.resume()
        async with asyncio.timeout(20):
            await listening
    await client.close()
    zombie.close()
    row = Row(request.request_id, "ended", [("length", call.num_tokens or 0, 2)])
    return judge([call], ANSWERS, [row])


@pytest.mark.parametrize("is_reader_open", [False, True])
async def test_the_fence_at_the_source_holds_alone(redis_url: str, is_reader_open: bool) -> None:
    assert (await judged(redis_url, is_reader_open=is_reader_open)).is_clean


async def test_the_fence_at_the_reader_holds_alone(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transport.server.read_script", without_fence)
    assert (await judged(redis_url, is_reader_open=False)).is_clean


async def test_control_without_any_fence_the_checker_sees_the_zombie(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transport.server.read_script", without_fence)
    assert (await judged(redis_url, is_reader_open=True)).different
