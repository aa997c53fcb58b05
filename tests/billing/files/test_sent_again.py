"""A file that is sent again with its Idempotency-Key is kept once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import httpx
import pytest

from app.context import AppContext
from app.files.jobs import FileJobs
from tests.builders.operator import Operator, Tenant

CONTENT = b'{"custom_id": "a"}\n' * 5_000


async def send(
    api: httpx.AsyncClient,
    headers: Mapping[str, str],
    content: bytes = CONTENT,
    key: str = "k1",
    name: str = "in.jsonl",
    **fields: str,
) -> httpx.Response:
    return await api.post(
        "/v1/files",
        headers={**headers, "idempotency-key": key},
        data={"purpose": "batch", **fields},
        files={"file": (name, content)},
    )


async def listed(api: httpx.AsyncClient, tenant: Tenant) -> list[str]:
    page = await api.get("/v1/files", headers=tenant.headers)
    return [each["id"] for each in page.json()["data"]]


def stored(context: AppContext) -> int:
    """Files of the store, whoever's."""
    folder = context.settings.file_store
    assert folder is not None
    return sum(len(names) for _, _, names in os.walk(folder))


async def test_a_file_that_is_sent_again_is_kept_once_and_answered_with_the_same_bytes(
    api: httpx.AsyncClient, acme: Tenant, context: AppContext, file_jobs: FileJobs
) -> None:
    first, again = [await send(api, acme.headers) for _ in range(2)]
    assert first.status_code == again.status_code == 200, first.text
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert await listed(api, acme) == [first.json()["id"]]
    assert stored(context) == 2  # until a worker has been there: nobody's
    while await file_jobs.remove_next():
        pass
    assert stored(context) == 1
    path = f"/v1/files/{first.json()['id']}/content"
    assert (await api.get(path, headers=acme.headers)).content == CONTENT


async def test_control_without_a_key_or_with_another_one_there_are_two(
    api: httpx.AsyncClient, acme: Tenant
) -> None:
    await send(api, acme.headers)
    await send(api, acme.headers, key="k2")
    plain = {"file": ("in.jsonl", CONTENT)}
    await api.post("/v1/files", headers=acme.headers, data={"purpose": "batch"}, files=plain)
    assert len(await listed(api, acme)) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"content": CONTENT + b"\n"},
        {"content": CONTENT[:-1] + b"\r"},
        {"name": "other.jsonl"},
        {"purpose": "user_data"},
        {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"},
    ],
)
async def test_the_same_key_with_another_file_is_refused_and_nothing_is_kept(
    api: httpx.AsyncClient,
    acme: Tenant,
    context: AppContext,
    file_jobs: FileJobs,
    other: dict[str, str],
) -> None:
    first = await send(api, acme.headers)
    refused = await send(api, acme.headers, **other)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (409, "idempotency_mismatch")
    assert refused.headers["x-should-retry"] == "false"
    assert await listed(api, acme) == [first.json()["id"]]
    while await file_jobs.remove_next():
        pass
    assert stored(context) == 1


async def test_of_twins_in_flight_one_is_kept(api: httpx.AsyncClient, acme: Tenant) -> None:
    answers = await asyncio.gather(*(send(api, acme.headers) for _ in range(5)))
    told = {each.json()["id"] for each in answers if each.is_success}
    refused = [each for each in answers if not each.is_success]
    assert len(told) == 1 and await listed(api, acme) == list(told)
    assert {each.json()["error"]["code"] for each in refused} <= {"idempotency_in_progress"}
    assert (await send(api, acme.headers)).json()["id"] in told


async def test_an_upload_that_failed_may_be_tried_again(
    api: httpx.AsyncClient, acme: Tenant
) -> None:
    refused = await send(api, acme.headers, purpose="fine-tune")
    assert refused.status_code == 400
    assert (await send(api, acme.headers)).status_code == 200


async def test_an_answer_is_for_the_key_that_got_it(
    api: httpx.AsyncClient, operator: Operator, acme: Tenant, globex: Tenant
) -> None:
    mine = await send(api, acme.headers)
    colleague = await operator.new_key("acme")
    for headers in ({"x-api-key": colleague["secret"]}, globex.headers):
        theirs = await send(api, headers)
        assert theirs.is_success and theirs.json()["id"] != mine.json()["id"]
        assert "idempotent-replayed" not in theirs.headers


async def test_a_retry_is_not_held_against_the_room_that_its_first_try_took(
    api: httpx.AsyncClient, acme: Tenant, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(context.settings.__dict__, "max_tenant_file_bytes", len(CONTENT) + 10)
    first, again = [await send(api, acme.headers) for _ in range(2)]
    assert again.content == first.content
    refused = await send(api, acme.headers, key="k2")  # control: there is no room for another one
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "quota_exceeded")
