"""A client that does not read is cut off by name; one that reads slowly is served to the end."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from app.api import create_app
from app.context import AppContext, open_context
from app.requests.consumer import UsageConsumer
from app.settings import Settings
from tests.app.requests.conftest import Rows
from tests.app.requests.test_ledger_of_requests import PATH, body, ended
from tests.builders.operator import Tenant
from tests.builders.raw_client import RawClient
from tests.builders.server import serving
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until
from tests.engine.transport.test_output_stream import buffered_bytes

STALL_TIMEOUT_S = 0.5
SMALL_BUFFER = 4096
NUM_CHOICES = 8
MAX_TOKENS = 400  # 600 KB of events in all: more than the buffers on the way take
BOUND_BYTES = 64 << 10
LONG = {"n": NUM_CHOICES, "stream": True}


@pytest.fixture
async def impatient(settings: Settings) -> AsyncIterator[AppContext]:
    changes = {"client_stall_timeout_s": STALL_TIMEOUT_S, "api_id": "api-impatient"}
    async with open_context(settings.model_copy(update=changes)) as opened:
        yield opened


@pytest.fixture
async def url(impatient: AppContext) -> AsyncIterator[str]:
    async with serving(create_app(impatient), send_buffer=SMALL_BUFFER) as url:
        yield url


@pytest.fixture
def engine(redis_url: str) -> Iterator[StubEngine]:
    """Twice as long at it as a client may stall, however slow the machine."""
    with StubEngine(redis_url, step_s=2.5 * STALL_TIMEOUT_S / MAX_TOKENS) as stub:
        yield stub


async def test_a_client_that_does_not_read_is_cut_off_and_everything_is_given_back(
    url: str,
    acme: Tenant,
    engine: StubEngine,
    impatient: AppContext,
    rows: Rows,
    consumer: UsageConsumer,
) -> None:
    client = RawClient(url, receive_buffer=SMALL_BUFFER)
    client.post(PATH, body(MAX_TOKENS, **LONG), acme.headers)
    await until(lambda: engine.num_running == NUM_CHOICES)
    await until(lambda: impatient.queue.num_in_flight == impatient.admission.num_held == 0)
    await until(lambda: engine.num_running == 0)

    received = b""
    while data := await asyncio.to_thread(client.read, 65536):
        received += data
    client.close()
    assert b"data: " in received and b"[DONE]" not in received

    reasons = {row["finish_reason"] for row in await ended(rows, consumer, NUM_CHOICES)}
    assert "client_too_slow" in reasons and reasons <= {"client_too_slow", "length"}


async def test_a_stream_behind_an_answer_that_nobody_reads_is_given_back_as_well(
    url: str, acme: Tenant, engine: StubEngine, impatient: AppContext
) -> None:
    """On one connection: no byte of the second answer can be sent, not even its status."""
    client = RawClient(url, receive_buffer=SMALL_BUFFER)
    client.get("/openapi.json", acme.headers)
    client.post(PATH, body(MAX_TOKENS, stream=True), acme.headers)
    await until(lambda: len(engine.requests) == 1)
    await until(lambda: impatient.queue.num_in_flight == impatient.admission.num_held == 0)
    await until(lambda: engine.aborted == [engine.requests[0].request_id])
    client.close()


async def test_control_a_client_that_reads_slowly_is_served_to_the_end(
    url: str, acme: Tenant, engine: StubEngine, rows: Rows, consumer: UsageConsumer
) -> None:
    client = RawClient(url, receive_buffer=SMALL_BUFFER)
    client.post(PATH, body(MAX_TOKENS, **LONG), acme.headers)
    tail, began_at = b"", time.monotonic()
    while b"[DONE]" not in tail:
        data = await asyncio.to_thread(client.read, 16384)
        assert data, "cut off"
        tail = (tail + data)[-100:]
        await asyncio.sleep(0.01)
    client.close()
    assert time.monotonic() - began_at > STALL_TIMEOUT_S, "it was not slow"
    assert {row["finish_reason"] for row in await ended(rows, consumer, NUM_CHOICES)} == {"length"}


class Watched:
    """An application that keeps the scopes of its requests."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        await self._app(scope, receive, send)

    def waiting_bytes(self, context: AppContext) -> int:
        """Of the one request: in the process, and in the kernel's queue of its connection."""
        transport = self.scopes[0]["extensions"]["tenfold.cut"]["abort"].__self__
        connection = transport.get_extra_info("socket")
        if transport.is_closing() or connection.fileno() < 0:
            return 0
        unsent = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
        streams = sum(map(buffered_bytes, context.queue._streams.values()))
        in_kernel = int.from_bytes(unsent, sys.byteorder)
        return transport.get_write_buffer_size() + in_kernel + streams


async def test_what_waits_for_a_client_that_does_not_read_is_bounded(
    impatient: AppContext, acme: Tenant, engine: StubEngine
) -> None:
    """With the kernel's own idea of a send buffer, which is megabytes."""
    app = Watched(create_app(impatient))
    async with serving(app) as url:
        client = RawClient(url, receive_buffer=SMALL_BUFFER)
        client.post(PATH, body(MAX_TOKENS, stream=True), acme.headers)
        await until(lambda: engine.num_running == 1)
        sizes = [0]
        while impatient.queue.num_in_flight:
            sizes.append(app.waiting_bytes(impatient))
            await asyncio.sleep(0.005)
        client.close()
    assert BOUND_BYTES / 4 < max(sizes) <= BOUND_BYTES
