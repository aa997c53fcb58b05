"""Files over REST: what comes back, what is refused, and that no tenant sees another's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI

from app.context import AppContext
from tests.builders.operator import Operator, Tenant
from tests.builders.server import serving

ABSENT = f"fil_{'0' * 26}"


async def upload(
    api: httpx.AsyncClient, tenant: Tenant, content: bytes, **fields: str
) -> httpx.Response:
    return await api.post(
        "/v1/files",
        headers=tenant.headers,
        data={"purpose": "user_data", **fields},
        files={"file": ("notes.txt", content)},
    )


async def uploaded(
    api: httpx.AsyncClient, tenant: Tenant, content: bytes = b"x", **fields: str
) -> dict[str, Any]:
    response = await upload(api, tenant, content, **fields)
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


@pytest.mark.parametrize("length", [0, 1, 64 << 10, (3 << 20) + 17])
async def test_a_file_comes_back_as_it_was_sent(
    api: httpx.AsyncClient, acme: Tenant, length: int
) -> None:
    content = os.urandom(length)
    file = await uploaded(api, acme, content)
    assert (file["bytes"], file["purpose"], file["filename"]) == (length, "user_data", "notes.txt")
    back = await api.get(f"/v1/files/{file['id']}/content", headers=acme.headers)
    assert back.content == content
    assert (await api.get(f"/v1/files/{file['id']}", headers=acme.headers)).json() == file


async def test_the_stock_sdk_keeps_lists_reads_and_deletes_files(
    tenant_app: FastAPI, acme: Tenant
) -> None:
    async with (
        serving(tenant_app) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=acme.secret, max_retries=0) as client,
    ):
        expiry: Any = {"anchor": "created_at", "seconds": 3600}
        made = [
            await client.files.create(
                file=(f"{name}.jsonl", b"{}\n"), purpose="batch", expires_after=expiry
            )
            for name in "abc"
        ]
        first = made[0]
        assert first.object == "file" and first.status == "processed"
        assert first.expires_at == first.created_at + 3600
        listed = [file.id async for file in client.files.list(limit=2)]
        assert listed == [file.id for file in reversed(made)]
        ascending = [file.id async for file in client.files.list(limit=2, order="asc")]
        assert ascending == listed[::-1]
        assert not [file async for file in client.files.list(purpose="user_data")]
        again = await client.files.retrieve(first.id)
        assert again.model_dump() == first.model_dump()
        assert (await client.files.content(first.id)).read() == b"{}\n"
        deleted = await client.files.delete(first.id)
        assert (deleted.id, deleted.object, deleted.deleted) == (first.id, "file", True)
        assert first.id not in [file.id async for file in client.files.list()]


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"purpose": "fine-tune"}, 400, "invalid_value", "purpose"),
        ({"purpose": ""}, 400, "invalid_value", "purpose"),
        ({"color": "red"}, 400, "unknown_parameter", "color"),
        ({"expires_after[seconds]": "3600"}, 400, "missing_required_parameter", None),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "1"},
            400,
            "invalid_value",
            "expires_after.seconds",
        ),
        ({"purpose": "x" * 300}, 400, "invalid_value", "purpose"),
    ],
)
async def test_what_an_upload_may_not_say_is_refused_by_name(
    api: httpx.AsyncClient,
    acme: Tenant,
    fields: Mapping[str, str],
    status: int,
    code: str,
    param: str | None,
) -> None:
    error = (await upload(api, acme, b"x", **fields)).json()["error"]
    assert error["code"] == code, error
    assert param is None or error["param"] == param
    listed = await api.get("/v1/files", headers=acme.headers)
    assert listed.json()["data"] == []


async def test_a_body_that_is_no_upload_is_refused(api: httpx.AsyncClient, acme: Tenant) -> None:
    boundary = {"content-type": "multipart/form-data; boundary=b", **acme.headers}
    part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nx'
    for headers, body, status, code in (
        (acme.headers, b"x", 415, "multipart_required"),
        (boundary, b"nothing of the kind", 400, "multipart_invalid"),
        (boundary, part, 400, "length_mismatch"),
        (boundary, part + b"\r\n--b--\r\n", 400, "missing_required_parameter"),
        ({**boundary, "content-encoding": "gzip"}, b"", 415, "content_encoding_unsupported"),
    ):
        response = await api.post("/v1/files", headers=headers, content=body)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_another_tenants_file_is_answered_as_one_that_is_not_there(
    api: httpx.AsyncClient, acme: Tenant, globex: Tenant
) -> None:
    file = await uploaded(api, acme, b"acme's own")
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        foreign, absent = [
            await api.request(method, f"/v1/files/{name}{path}", headers=globex.headers)
            for name in (file["id"], ABSENT)
        ]
        assert foreign.status_code == absent.status_code == 404
        assert foreign.content == absent.content
    listed = (await api.get("/v1/files", headers=globex.headers)).json()
    assert listed["data"] == []
    assert (await api.get(f"/v1/files/{file['id']}", headers=acme.headers)).is_success


async def test_a_key_without_the_scope_keeps_no_file(
    api: httpx.AsyncClient, acme: Tenant, operator: Operator
) -> None:
    key = await operator.new_key("acme", scopes=["usage:read"])
    response = await api.post("/v1/files", headers={"x-api-key": key["secret"]})
    assert response.status_code == 403


async def test_a_file_and_all_files_together_may_hold_so_much(
    api: httpx.AsyncClient, acme: Tenant, context: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"max_file_bytes": 100_000, "max_tenant_file_bytes": 150_000}
    for name, value in limits.items():
        monkeypatch.setitem(context.settings.__dict__, name, value)
    assert (await upload(api, acme, bytes(100_001))).json()["error"]["code"] == "file_too_large"
    declared = await api.post(
        "/v1/files", headers={**acme.headers, "content-length": "1000000"}, content=b""
    )
    assert declared.status_code == 413
    await uploaded(api, acme, bytes(100_000))
    over = await upload(api, acme, bytes(60_000))
    assert (over.status_code, over.json()["error"]["code"]) == (403, "quota_exceeded")
    await uploaded(api, acme, bytes(50_000))
