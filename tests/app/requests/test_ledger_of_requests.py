"""The ledger equals what clients received, for every way in which a request can end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redis.asyncio import Redis
from sqlalchemy import text

from app.api import create_app
from app.context import AppContext, open_context
from app.db import Database
from app.requests.consumer import UsageConsumer
from app.settings import Settings
from engine.messages import EngineError, EngineRequest
from engine.transport import keys
from tests.app.requests.conftest import Rows
from tests.app.requests.test_consumer import consume
from tests.builders.operator import Operator, Tenant
from tests.builders.server import serving
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually, until
from tests.fixtures.servers import TestDatabase

PATH = "/v1/completions"


def body(max_tokens: int = 8, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "prompt": "abcdefgh", "max_tokens": max_tokens, **fields}


@pytest.fixture
def engine(redis_url: str) -> Iterator[StubEngine]:
    """Echoes the prompt, a token every 2 ms."""
    with StubEngine(redis_url, step_s=0.002) as stub:
        yield stub


@pytest.fixture
async def client(tenant_app: FastAPI, acme: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(tenant_app) as url,
        httpx.AsyncClient(base_url=url, headers=acme.headers) as client,
    ):
        yield client


async def ended(rows: Rows, consumer: UsageConsumer, num: int) -> list[dict[str, Any]]:
    """The final rows, when all `num` accepted requests have one and only one."""

    async def all_ended() -> bool:
        await consumer.run_once()
        return [row["state"] for row in await rows.requests()] == ["ended"] * num

    await eventually(all_ended, timeout_s=20)
    await consume(consumer)
    finals = await rows.finals()
    assert [row["request_id"] for row in finals] == [
        row["request_id"] for row in await rows.requests()
    ]
    return finals


async def test_an_answer_and_a_stream_are_in_the_ledger_as_their_clients_were_told(
    client: httpx.AsyncClient,
    acme: Tenant,
    engine: StubEngine,
    rows: Rows,
    consumer: UsageConsumer,
) -> None:
    whole = (await client.post(PATH, json=body(8))).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = await client.post(PATH, json=body(100, **options))
    events = [line[6:] for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    usages = {
        whole["id"].removeprefix("cmpl-") + "-0": whole["usage"],
        json.loads(events[0])["id"].removeprefix("cmpl-") + "-0": json.loads(events[-1])["usage"],
    }
    finals = await ended(rows, consumer, 2)
    for row in finals:
        told = usages[row["request_id"]]
        assert row["num_prompt_tokens"] == told["prompt_tokens"] == 8
        assert row["num_generated_tokens"] == told["completion_tokens"]
        assert (row["finish_reason"], row["engine_id"]) == ("length", "stub-0")
        assert row["tenant_id"] == acme.id and row["queue_ms"] is not None
    assert sorted(row["num_generated_tokens"] for row in finals) == [8, 100]
    checkpoints = [row for row in await rows.events() if row["event"] == "checkpoint"]
    assert [row["num_generated_tokens"] for row in checkpoints] == [64]


async def test_every_choice_of_every_prompt_is_accepted_and_ends(
    client: httpx.AsyncClient,
    acme: Tenant,
    engine: StubEngine,
    rows: Rows,
    consumer: UsageConsumer,
) -> None:
    response = await client.post(PATH, json=body(3, prompt=["ab", "xyz"], n=2))
    assert response.status_code == 200
    accepted = await rows.requests()
    assert len(accepted) == 4 and len({row["xmin"] for row in accepted}) == 1
    assert {row["key_id"] for row in accepted} == {acme.key_id}
    assert {(row["model"], row["max_tokens"]) for row in accepted} == {(MODEL_ID, 3)}
    finals = await ended(rows, consumer, 4)
    assert [row["num_generated_tokens"] for row in finals] == [3] * 4
    assert [row["num_prompt_tokens"] for row in finals] == [2, 2, 3, 3]


async def test_a_client_that_goes_pays_for_what_was_generated_until_then(
    client: httpx.AsyncClient, engine: StubEngine, rows: Rows, consumer: UsageConsumer
) -> None:
    num_received = 0
    async with client.stream("POST", PATH, json=body(400, stream=True)) as response:
        async for line in response.aiter_lines():
            num_received += line.startswith("data: {")
            if num_received == 30:
                break
    [final] = await ended(rows, consumer, 1)
    assert final["finish_reason"] == "abort"
    assert 29 <= final["num_generated_tokens"] < 400


async def test_a_client_that_goes_in_the_queue_pays_for_nothing(
    client: httpx.AsyncClient, rows: Rows, consumer: UsageConsumer, context: AppContext
) -> None:
    calling = asyncio.create_task(client.post(PATH, json=body()))
    await until(lambda: context.queue.num_in_flight == 1)
    calling.cancel()
    [final] = await ended(rows, consumer, 1)
    assert (final["finish_reason"], final["num_generated_tokens"]) == ("abort", 0)


async def test_a_client_that_goes_while_its_request_is_being_queued_pays_for_nothing(
    client: httpx.AsyncClient,
    rows: Rows,
    consumer: UsageConsumer,
    context: AppContext,
    queue: Redis,
    database: TestDatabase,
) -> None:
    """Its row is committed, and Redis has not answered yet; the ledger has one word for both."""
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:
        await session.execute(text("LOCK TABLE requests IN EXCLUSIVE MODE"))
        calling = asyncio.create_task(client.post(PATH, json=body()))
        await until(lambda: context.admission.num_held == 1)
        await queue.execute_command("CLIENT", "PAUSE", "30000", "WRITE")
    await owner.close()
    await until(lambda: context.queue.num_in_flight == 1)
    calling.cancel()
    await until(lambda: context.queue.num_in_flight == 0)
    await queue.execute_command("CLIENT", "UNPAUSE")
    [final] = await ended(rows, consumer, 1)
    assert (final["finish_reason"], final["num_generated_tokens"]) == ("abort", 0)


async def test_a_stop_string_ends_a_request_as_its_client_was_told(
    client: httpx.AsyncClient, engine: StubEngine, rows: Rows, consumer: UsageConsumer
) -> None:
    answer = (await client.post(PATH, json=body(400, stop="fg"))).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    [final] = await ended(rows, consumer, 1)
    assert final["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] <= final["num_generated_tokens"] < 400


async def test_an_engines_error_is_an_end_without_tokens(
    client: httpx.AsyncClient, redis_url: str, rows: Rows, consumer: UsageConsumer
) -> None:
    def refuse(_: EngineRequest) -> EngineError:
        return EngineError(code="adapter_corrupt", message="Its bytes are not what they were.")

    with StubEngine(redis_url, reply=refuse):
        assert (await client.post(PATH, json=body())).status_code == 503
    [final] = await ended(rows, consumer, 1)
    assert (final["finish_reason"], final["num_generated_tokens"]) == ("adapter_corrupt", 0)


async def test_a_killed_engines_request_ends_with_what_came_through(
    client: httpx.AsyncClient, redis_url: str, rows: Rows, consumer: UsageConsumer
) -> None:
    engine = StubEngine(redis_url, step_s=0.002)
    engine.start()
    calling = asyncio.create_task(client.post(PATH, json=body(400)))
    await until(lambda: engine.num_published_batches > 70)
    await asyncio.to_thread(engine.kill)
    assert (await calling).status_code == 503
    [final] = await ended(rows, consumer, 1)
    assert final["finish_reason"] == "engine_lost"
    assert 64 < final["num_generated_tokens"] < 400


async def test_a_redis_that_loses_its_data_before_the_worker_reads_it_loses_no_bill(
    client: httpx.AsyncClient,
    engine: StubEngine,
    queue: Redis,
    rows: Rows,
    consumer: UsageConsumer,
) -> None:
    assert (await client.post(PATH, json=body(5))).status_code == 200
    await eventually(lambda: _is_there(queue))
    await queue.flushall()
    [final] = await ended(rows, consumer, 1)
    assert (final["finish_reason"], final["num_generated_tokens"]) == ("length", 5)


async def _is_there(queue: Redis) -> bool:
    return bool(await queue.xlen(keys.USAGE))


async def test_an_operator_sees_what_became_of_a_request_and_tenants_do_not(
    client: httpx.AsyncClient,
    acme: Tenant,
    operator: Operator,
    engine: StubEngine,
    rows: Rows,
    consumer: UsageConsumer,
) -> None:
    answer = (await client.post(PATH, json=body(5))).json()
    await ended(rows, consumer, 1)
    request_id = answer["id"].removeprefix("cmpl-") + "-0"
    shown = await operator.done("GET", f"/requests/{request_id}")
    assert (shown["tenant_id"], shown["state"], shown["max_tokens"]) == (acme.id, "ended", 5)
    [event] = shown["events"]
    assert (event["event"], event["num_generated_tokens"]) == ("final", 5)
    assert "abcdefgh" not in json.dumps(shown)
    assert (await operator.call("GET", "/requests/nobody-0")).status_code == 404
    assert (await client.get(f"/admin/v1/requests/{request_id}")).status_code == 404


async def test_while_the_ledger_is_far_behind_nothing_new_is_accepted(
    settings: Settings,
    acme: Tenant,
    engine: StubEngine,
    rows: Rows,
    queue: Redis,
    consumer: UsageConsumer,
) -> None:
    strict = settings.model_copy(update={"max_usage_backlog": 1})
    async with (
        open_context(strict) as context,
        serving(create_app(context)) as url,
        httpx.AsyncClient(base_url=url, headers=acme.headers) as client,
    ):
        for _ in range(2):
            assert (await client.post(PATH, json=body(2))).status_code == 200
        await until(lambda: context.queue.usage_backlog == 2)
        refused = await client.post(PATH, json=body(2))
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "dependency_unavailable"
        assert len(await rows.requests()) == 2

        await ended(rows, consumer, 2)
        await until(lambda: context.queue.usage_backlog == 0)
        assert (await client.post(PATH, json=body(2))).status_code == 200
