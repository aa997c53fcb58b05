"""A client that does not read is cut off by name; one that reads slowly is served to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

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

STALL_TIMEOUT_S = 0.5
SMALL_BUFFER = 4096
NUM_CHOICES = 8
MAX_TOKENS = 400  # 600 KB of events in all: more than the buffers on the way take
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
