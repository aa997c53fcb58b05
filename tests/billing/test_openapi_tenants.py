"""The tenants' OpenAPI document: its examples are sent for real, and answers are what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import FastAPI

from app.openapi.document import admin_document, operations_of, tenant_document
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.documented_calls import JSON, DocumentedCalls
from tests.builders.operator import Operator, Tenant
from tests.builders.part_sender import declared
from tests.builders.stub_engine import StubEngine

SCOPES = ("inference", "adapters:write", "keys:write", "usage:read")
ADAPTER = "/adapters/{adapter}"
VERSION = f"{ADAPTER}/versions/{{version}}"
ALIAS = f"{ADAPTER}/aliases/{{alias}}"
ROLLOUT = f"{ADAPTER}/rollouts/{{rollout}}"
UPLOAD = f"{ADAPTER}/uploads/{{upload}}"
IMPORT = f"{ADAPTER}/imports/{{import_id}}"
NOT_SENT = {
    f"GET {IMPORT}/events": "a stream that ends with the import",
}
"""Operations whose examples are sent elsewhere, or nowhere; and why."""


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme", scopes=SCOPES)


@pytest.fixture
def engine(redis_url: str) -> Iterator[StubEngine]:
    with StubEngine(redis_url) as stub:
        yield stub


@pytest.fixture
async def calls(
    tenant_app: FastAPI, api: httpx.AsyncClient, acme: Tenant
) -> AsyncIterator[DocumentedCalls]:
    names = {
        "adapter": "support-bot",
        "model": "support-bot",
        "alias": "prod",
        "version": "v1",
        "path": "adapter_config.json",
        "number": "1",
    }
    yield DocumentedCalls(tenant_document(tenant_app), api, acme.headers, names)


async def test_what_the_examples_say_can_be_sent_and_is_answered_as_documented(
    calls: DocumentedCalls, operator: Operator, engine: StubEngine, tiny_base: BaseSpec
) -> None:
    await send_keys(calls)
    await send_adapters(calls, operator, tiny_base)
    await send_questions(calls)
    await send_rollouts(calls)
    await send_uploads(calls, tiny_base)
    await send_files(calls)
    await send_ends(calls)
    assert calls.operations.keys() - calls.sent == NOT_SENT.keys()


async def send_keys(calls: DocumentedCalls) -> None:
    calls.names["key"] = (await calls.send("POST /keys")).json()["id"]
    await calls.send("GET /keys")
    await calls.send("GET /keys/{key}")
    await calls.send("POST /keys/{key}/rotate")
    await calls.send("POST /keys/{key}/disable")
    await calls.send("DELETE /keys/{key}")


async def send_adapters(calls: DocumentedCalls, operator: Operator, base: BaseSpec) -> None:
    await calls.send("POST /adapters")
    for seed in (1, 2):
        sent = adapter_files(base, seed=seed) | {"eval.jsonl": b'{"prompt": "Hi", "exact": "Ho"}'}
        files = [(name, (name, data)) for name, data in sent.items()]
        await calls.send(f"POST {ADAPTER}/validate", files=files)
        await calls.send(f"POST {ADAPTER}/versions", files=files)
        await operator.run_jobs()
    await calls.send("GET /adapters")
    await calls.send(f"GET {ADAPTER}")
    await calls.send(f"PATCH {ADAPTER}")
    await calls.send(f"GET {ADAPTER}/versions")
    assert (await calls.send(f"GET {VERSION}")).json()["state"] == "active"
    for below in ("report", "download", "files/{path}"):
        await calls.send(f"GET {VERSION}/{below}")
    await calls.send(f"PUT {ALIAS}")
    await calls.send(f"GET {ALIAS}")
    await calls.send(f"GET {ALIAS}/history")
    await calls.send(f"GET {ALIAS}/shadow")


async def send_questions(calls: DocumentedCalls) -> None:
    await calls.send("GET /models")
    await calls.send("GET /models/{model}")
    answer = (await calls.send("POST /chat/completions")).json()
    assert answer["choices"][0]["message"]["content"]
    assert (await calls.send("POST /completions")).json()["choices"][0]["text"]
    await calls.send("GET /usage")
    await calls.send(f"POST {VERSION}/evaluate")


async def send_rollouts(calls: DocumentedCalls) -> None:
    made = await calls.send(f"POST {ADAPTER}/rollouts")
    calls.names["rollout"] = made.json()["id"]
    await calls.send(f"GET {ADAPTER}/rollouts")
    for name in ("GET", "GET /preview", "POST /pause", "POST /resume", "POST /cancel"):
        method, _, below = name.partition(" ")
        await calls.send(f"{method} {ROLLOUT}{below}")
    made = await calls.send(f"POST {ADAPTER}/rollouts")
    calls.names["rollout"] = made.json()["id"]
    await calls.send(f"POST {ROLLOUT}/promote")
    await calls.send(f"POST {ALIAS}/rollback")


async def send_uploads(calls: DocumentedCalls, base: BaseSpec) -> None:
    made = await calls.send(f"POST {ADAPTER}/uploads")
    calls.names["upload"] = made.json()["id"]
    await calls.send(f"GET {ADAPTER}/uploads")
    await calls.send(f"GET {UPLOAD}")
    await calls.send(f"POST {UPLOAD}/cancel")
    files = adapter_files(base, seed=3)
    made = await calls.send(f"POST {ADAPTER}/uploads", json=declared(files))
    calls.names["upload"] = made.json()["id"]
    for file in made.json()["files"]:
        for part in file["parts"]:  # none of a file that another version has
            calls.names |= {"path": file["path"], "number": str(part["n"])}
            sent = files[file["path"]][(part["n"] - 1) * file["part_size"] :][: part["bytes"]]
            await calls.send(f"PUT {UPLOAD}/files/{{path}}/parts/{{number}}", content=sent)
    await calls.send(f"POST {UPLOAD}/complete")

    made = await calls.send(f"POST {ADAPTER}/imports")
    calls.names["import_id"] = made.json()["id"]
    await calls.send(f"GET {ADAPTER}/imports")
    await calls.send(f"GET {IMPORT}")
    await calls.send(f"POST {IMPORT}/cancel")


async def send_files(calls: DocumentedCalls) -> None:
    form = [("purpose", (None, "batch")), ("file", ("in.jsonl", b'{"custom_id": "1"}\n'))]
    for _ in range(2):
        calls.names["file"] = (await calls.send("POST /files", files=form)).json()["id"]
    await calls.send("GET /files")
    await calls.send("GET /files/{file}")
    await calls.send("GET /files/{file}/content")
    batch = {**example_of(calls, "POST /batches"), "input_file_id": calls.names["file"]}
    calls.names["batch"] = (await calls.send("POST /batches", json=batch)).json()["id"]
    await calls.send("GET /batches")
    await calls.send("GET /batches/{batch}")
    await calls.send("POST /batches/{batch}/cancel")
    other = await calls.send("POST /files", files=form)  # the first one is being read
    calls.names["file"] = other.json()["id"]
    await calls.send("DELETE /files/{file}")


async def send_ends(calls: DocumentedCalls) -> None:
    """What takes things away, last."""
    await calls.send(f"PUT {ALIAS}")  # to v1, wherever it pointed
    calls.names["version"] = "v2"
    await calls.send(f"POST {VERSION}/deprecate")
    await calls.send(f"POST {VERSION}/archive")
    await calls.send(f"POST {VERSION}/restore")
    await calls.send(f"POST {VERSION}/activate")
    await calls.send(f"DELETE {VERSION}")
    await calls.send(f"DELETE {ALIAS}")
    await calls.send(f"DELETE {ADAPTER}", params={"force": True})


def example_of(calls: DocumentedCalls, name: str) -> dict[str, object]:
    _, _, operation = calls.operations[name]
    example = operation["requestBody"]["content"][JSON]["example"]
    assert isinstance(example, dict)
    return example


def test_every_example_of_an_answer_fits_its_schema(
    tenant_app: FastAPI, admin_app: FastAPI, api: httpx.AsyncClient
) -> None:
    num = 0
    for document in (tenant_document(tenant_app), admin_document(admin_app)):
        calls = DocumentedCalls(document, api, {}, {})
        for name, operation in operations_of(document):
            for status, response in operation["responses"].items():
                media = response.get("content", {}).get(JSON)
                if media is not None and status.startswith("2"):
                    calls.check_value(media["schema"], media["example"], name)
                    num += 1
    assert num > 100


async def test_control_an_answer_that_is_not_as_documented_is_noticed(
    calls: DocumentedCalls, engine: StubEngine
) -> None:
    _, _, operation = calls.operations["POST /keys"]
    made = (await calls.send("POST /keys")).json()
    for wrong in ({**made, "scopes": "inference"}, {**made, "last4": None}, {}):
        with pytest.raises(AssertionError):
            calls.check(operation, httpx.Response(201, json=wrong))
    with pytest.raises(AssertionError, match="202"):
        calls.check(operation, httpx.Response(202, json=made))
    _, _, chat = calls.operations["POST /chat/completions"]
    with pytest.raises(AssertionError, match="AnsweredChatCompletion"):
        calls.check(chat, httpx.Response(200, json={"id": "chatcmpl-1", "object": "x"}))
