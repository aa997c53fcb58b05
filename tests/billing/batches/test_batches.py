"""A batch is answered line by line: through the doors, the queue and the ledger of everybody."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI

from app.batches.schemas import TEXT
from app.context import AppContext
from app.requests.consumer import UsageConsumer
from engine.transport.connection import open_async_redis
from tests.app.requests.conftest import Rows
from tests.billing.batches.conftest import Working
from tests.billing.batches.inputs import Submitter, chat_line, jsonl, text_line
from tests.builders.operator import Operator, Tenant
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.server import serving
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import eventually

ABSENT = f"bat_{'0' * 26}"


async def written(context: AppContext, redis_url: str) -> None:
    """What was used so far is in the ledger."""
    async with open_async_redis(redis_url, max_connections=2) as client:
        consumer = UsageConsumer(context.database, client, secret=QUEUE_SECRET)
        while True:
            await consumer.run_once()
            if consumer.is_caught_up:
                return


async def test_the_stock_sdk_runs_a_batch(
    tenant_app: FastAPI,
    acme: Tenant,
    engine: StubEngine,
    working: Working,
    submitter: Submitter,
    context: AppContext,
    redis_url: str,
    rows: Rows,
) -> None:
    lines = [chat_line(f"good-{i}", "x" * (i + 1)) for i in range(12)]
    lines += [chat_line("no-model", model="nobody"), chat_line("hot", temperature=9)]
    lines += [chat_line("stream", stream=True), chat_line("two", n=2)]
    async with (
        serving(tenant_app) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=acme.secret, max_retries=0) as client,
        working(),
    ):
        file = await client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"run": "nightly"},
        )
        assert (batch.status, batch.metadata) == ("validating", {"run": "nightly"})

        async def has_ended() -> bool:
            return (await client.batches.retrieve(batch.id)).status == "completed"

        await eventually(has_ended, timeout_s=60)
        done = await client.batches.retrieve(batch.id)
        assert [each.id async for each in client.batches.list(limit=1)] == [batch.id]
        assert done.output_file_id is not None and done.error_file_id is not None
        output = (await client.files.content(done.output_file_id)).text
        kept = await client.files.retrieve(done.output_file_id)
        assert kept.purpose == "batch_output"
    counts = done.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (16, 13, 3)
    assert done.in_progress_at and done.finalizing_at and done.completed_at

    answers = [json.loads(line) for line in output.splitlines()]
    names = [answer["custom_id"] for answer in answers]
    assert names == [f"good-{i}" for i in range(12)] + ["two"]  # in the input's order
    for answer in answers:
        response = answer["response"]
        assert answer["id"].startswith("batch_req_") and answer["error"] is None
        assert response["status_code"] == 200 and response["request_id"].startswith("req_")
        assert response["body"]["object"] == "chat.completion"
        assert response["body"]["service_tier"] == "flex"
    errors = await submitter.lines_of(done.error_file_id)
    statuses = {name: each["response"]["status_code"] for name, each in errors.items()}
    assert statuses == {"no-model": 404, "hot": 400, "stream": 400}
    assert errors["no-model"]["response"]["body"]["error"]["code"] == "model_not_found"

    await written(context, redis_url)
    finals, accepted = await rows.finals(), await rows.requests()
    used = [answer["response"]["body"]["usage"] for answer in answers]
    assert done.usage is not None
    assert len(finals) == len(accepted) == 14  # "two" has two choices
    assert sum(row["num_generated_tokens"] for row in finals) == done.usage.output_tokens
    assert sum(each["completion_tokens"] for each in used) == done.usage.output_tokens
    assert sum(each["prompt_tokens"] for each in used) == done.usage.input_tokens
    assert {(row["state"], row["service_tier"]) for row in accepted} == {("ended", "flex")}
    assert {row["key_id"] for row in accepted} == {acme.key_id}


async def test_text_completions_and_empty_lines(
    submitter: Submitter, engine: StubEngine, working: Working
) -> None:
    content = b"\n" + jsonl([text_line("a", "one")]) + b"\r\n  \n" + jsonl([text_line("b")])[:-1]
    async with working():
        batch = await submitter.submit(content, TEXT)
        done = await submitter.ended(batch["id"])
    assert (done["status"], done["request_counts"]["total"]) == ("completed", 2)
    output = await submitter.lines_of(done["output_file_id"])
    assert output["a"]["response"]["body"]["object"] == "text_completion"
    assert set(output) == {"a", "b"} and done["error_file_id"] is None


async def test_an_input_that_cannot_be_read_fails_the_batch_and_says_where(
    submitter: Submitter, engine: StubEngine, working: Working
) -> None:
    content = jsonl([chat_line("a"), chat_line("a"), text_line("c")]) + b"{nonsense\n"
    async with working():
        batch = await submitter.submit(content)
        empty = await submitter.submit(b"\n\n")
        failed = await submitter.ended(batch["id"])
        nothing = await submitter.ended(empty["id"])
    assert failed["status"] == nothing["status"] == "failed"
    found = [(error["line"], error["code"]) for error in failed["errors"]["data"]]
    assert found == [
        (2, "duplicate_custom_id"),
        (3, "mismatched_url"),
        (4, "invalid_json_line"),
    ]
    assert nothing["errors"]["data"][0]["code"] == "empty_file"
    assert failed["output_file_id"] is None and not engine.requests


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"endpoint": "/v1/embeddings"}, 400, "invalid_value"),
        ({"completion_window": "1h"}, 400, "invalid_value"),
        ({"input_file_id": f"fil_{'0' * 26}"}, 404, "not_found"),
        ({"input_file_id": "file-of-elsewhere"}, 404, "not_found"),
        ({"color": "red"}, 400, "unknown_parameter"),
        ({"metadata": {"k": "v" * 513}}, 400, "invalid_value"),
    ],
)
async def test_what_a_batch_may_not_be_is_refused_by_name(
    submitter: Submitter, changes: dict[str, Any], status: int, code: str
) -> None:
    body = {
        "input_file_id": await submitter.upload(b"{}\n"),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    response = await submitter.call("POST", "/batches", json={**body, **changes})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_a_batch_that_is_asked_for_twice_with_one_idempotency_key_is_made_once(
    submitter: Submitter,
) -> None:
    body = {
        "input_file_id": await submitter.upload(b"{}\n"),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    headers = {**submitter.tenant.headers, "idempotency-key": "nightly-4711"}
    made = [
        (await submitter.api.post("/v1/batches", headers=headers, json=body)).json()
        for _ in range(2)
    ]
    assert made[0]["id"] == made[1]["id"]
    without_key = (await submitter.call("POST", "/batches", json=body)).json()
    assert without_key["id"] != made[0]["id"]  # control


async def test_another_tenants_batch_is_answered_as_one_that_is_not_there(
    submitter: Submitter, globex: Tenant
) -> None:
    batch = await submitter.submit([chat_line("a")])
    other = Submitter(submitter.api, globex)
    for method, path in (("GET", ""), ("POST", "/cancel")):
        foreign, absent = [
            await other.call(method, f"/batches/{name}{path}") for name in (batch["id"], ABSENT)
        ]
        assert foreign.status_code == absent.status_code == 404
        assert foreign.content == absent.content
    assert (await other.call("GET", "/batches")).json()["data"] == []
    stolen = {
        "input_file_id": batch["input_file_id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    assert (await other.call("POST", "/batches", json=stolen)).status_code == 404


async def test_a_file_that_a_batch_reads_is_not_taken_from_it(
    submitter: Submitter, engine: StubEngine, working: Working
) -> None:
    batch = await submitter.submit([chat_line("a")])
    path = f"/files/{batch['input_file_id']}"
    refused = await submitter.call("DELETE", path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "file_in_use")
    async with working():
        await submitter.ended(batch["id"])
    assert (await submitter.call("DELETE", path)).is_success


async def test_a_tenant_that_is_deleted_takes_its_batches_along(
    submitter: Submitter, engine: StubEngine, operator: Operator, working: Working, rows: Rows
) -> None:
    engine.pause()
    async with working():
        batch = await submitter.submit([chat_line(str(i)) for i in range(4)])

        async def runs() -> bool:
            return engine.num_running > 0

        await eventually(runs)
        deleted = await operator.done("DELETE", "/tenants/acme")
        assert deleted["erased"]["batches"] == 1
        engine.resume()
    assert (await submitter.call("GET", f"/batches/{batch['id']}")).status_code == 401
    assert Counter(row["state"] for row in await rows.requests()).keys() <= {"accepted", "ended"}
