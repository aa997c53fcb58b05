"""Reasoning from the engine to the bill: as the client is told, so it is in the ledger."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from app.context import AppContext
from app.requests.consumer import UsageConsumer
from app.settings import Settings
from engine.transport.connection import open_async_redis
from tests.builders.operator import Operator
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_loop import StubLoop
from tests.builders.tiny_base import MODEL_ID, THINKING, write_thinking_base
from tests.builders.waiting import eventually

MAX_TOKENS = 300
HOUR_S = 3600


@pytest.fixture(scope="module")
def thinking_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_thinking_base(tmp_path_factory.mktemp("bases") / "thinking")


@pytest.fixture
def settings(settings: Settings, thinking_base: Path) -> Settings:
    return settings.model_copy(update={"model": thinking_base})


async def test_clients_and_the_ledger_are_told_the_same(
    api: httpx.AsyncClient, operator: Operator, context: AppContext, redis_url: str
) -> None:
    assert context.base.reasoning_token_ids == THINKING
    tenant = await operator.new_tenant("acme", scopes=("inference", "usage:read"))
    # Ends within an open stretch: all of the answer is reasoning, up to a token that closes it.
    body = {"model": MODEL_ID, "prompt": "Why? <think>", "max_tokens": MAX_TOKENS, "seed": 1}
    bodies = [
        body,
        body | {"prompt": "Why? <think>Because.</think>"},
        body | {"stream": True, "stream_options": {"include_usage": True}},
    ]
    with StubLoop(redis_url, context.base, step_s=0.0):
        answers = [
            await api.post("/v1/completions", json=each, headers=tenant.headers, timeout=60)
            for each in bodies
        ]
    usages = [usage_of(answer) for answer in answers]
    told = [each["completion_tokens_details"]["reasoning_tokens"] for each in usages]
    assert told[0] == told[2] > 0, "streamed or not"
    assert told[1] < usages[1]["completion_tokens"]

    redis = open_async_redis(redis_url, max_connections=2)
    consumer = UsageConsumer(context.database, redis, secret=QUEUE_SECRET)

    now = int(context.now().timestamp())
    query = {"start_time": now - HOUR_S, "end_time": now + HOUR_S}
    num_output = sum(each["completion_tokens"] for each in usages)
    row: dict[str, int] = {}

    async def is_written() -> bool:
        await consumer.run_once()
        page = (await api.get("/v1/usage", params=query, headers=tenant.headers)).json()
        for bucket in page["data"]:
            for result in bucket["results"]:
                row.update(result if result["output_tokens"] else {})
        return row.get("output_tokens") == num_output

    await eventually(is_written)
    await redis.aclose()
    assert row["output_reasoning_tokens"] == sum(told)


def usage_of(answer: httpx.Response) -> dict[str, dict[str, int]]:
    assert answer.status_code == 200, answer.text
    if "text/event-stream" not in answer.headers["content-type"]:
        return dict(answer.json()["usage"])
    [*_, last] = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return dict(json.loads(last.removeprefix("data: "))["usage"])
