from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.completions.outputs import _submit
from app.context import AppContext
from engine.transport.output_stream import OutputStream
from tests.app.completions.conftest import Say
from tests.app.completions.test_chat_route import PATH, body
from tests.builders.operator import Tenant
from tests.builders.requests import make_request
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until


@pytest.fixture
def slow_engine(redis_url: str, say: Say) -> Iterator[StubEngine]:
    """A token every 10 ms, for longer than any test."""
    reply = say("x" * 400)
    with StubEngine(redis_url, reply=lambda request: reply, step_s=0.01) as engine:
        yield engine


async def everything_is_given_back(context: AppContext, engine: StubEngine, num: int) -> None:
    await until(lambda: len(engine.aborted) == num)
    await until(lambda: engine.num_running == 0 and context.admission.num_held == 0)
    assert context.queue.num_in_flight == 0


async def hang_up_after(client: httpx.AsyncClient, tenant: Tenant, json: Any, started: Any) -> None:
    """Send a request and close its connection once `started()`."""
    calling = asyncio.create_task(client.post(PATH, json=json, headers=tenant.headers))
    await until(started)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_a_client_that_hangs_up_in_mid_stream_aborts_its_sequences(
    base_url: str, acme: Tenant, slow_engine: StubEngine, context: AppContext
) -> None:
    async with httpx.AsyncClient(base_url=base_url) as client:
        fields = {"json": body(stream=True, n=2), "headers": acme.headers}
        async with client.stream("POST", PATH, **fields) as response:
            lines = response.aiter_lines()
            for _ in range(5):
                await anext(lines)
            await until(lambda: slow_engine.num_running == 2)
    await everything_is_given_back(context, slow_engine, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_while_the_engine_works_aborts_it(
    base_url: str, acme: Tenant, slow_engine: StubEngine, context: AppContext, stream: bool
) -> None:
    slow_engine.pause()  # no token comes, so nothing is ever sent on the connection
    async with httpx.AsyncClient(base_url=base_url) as client:
        json = body(stream=stream)
        await hang_up_after(client, acme, json, lambda: slow_engine.num_running == 1)
        await everything_is_given_back(context, slow_engine, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_in_the_queue_leaves_nothing_there(
    base_url: str, acme: Tenant, redis_url: str, say: Say, context: AppContext, stream: bool
) -> None:
    async with httpx.AsyncClient(base_url=base_url) as client:
        json = body(stream=stream)
        await hang_up_after(client, acme, json, lambda: context.queue.num_in_flight == 1)
        await until(lambda: context.queue.num_in_flight == context.admission.num_held == 0)
        with StubEngine(redis_url, reply=lambda request: say("later")) as engine:
            fields = {"json": body(), "headers": acme.headers}
            assert (await client.post(PATH, **fields)).status_code == 200
    assert len(engine.requests) == 1  # the second client's


async def test_a_client_that_hangs_up_in_the_moment_of_submission_leaves_nothing_there(
    context: AppContext, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue has the request, and who submitted it is gone before it can take its stream."""
    submit = context.queue.submit

    async def submit_and_hang_up(*args: Any, **fields: Any) -> OutputStream:
        stream = await submit(*args, **fields)
        asyncio.get_running_loop().call_soon(calling.cancel)
        return stream

    monkeypatch.setattr(context.queue, "submit", submit_and_hang_up)
    request = make_request(api_id=context.settings.api_id, max_tokens=100_000)
    with StubEngine(redis_url, step_s=0.01) as engine:
        calling = asyncio.create_task(_submit(context, request, 60.0))
        with pytest.raises(asyncio.CancelledError):
            await calling
        await until(lambda: context.queue.num_in_flight == 0)
        await until(lambda: not context.queue._aborts)
        assert engine.num_running == 0


async def test_an_answer_that_ends_by_itself_aborts_nothing(
    base_url: str, acme: Tenant, engine: StubEngine, context: AppContext
) -> None:
    async with httpx.AsyncClient(base_url=base_url) as client:
        for stream in (False, True):
            json = body(stream=stream, n=2)
            response = await client.post(PATH, json=json, headers=acme.headers)
            assert response.status_code == 200
    assert engine.aborted == []
    assert context.admission.num_held == context.queue.num_in_flight == 0
