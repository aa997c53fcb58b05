"""Whatever goes wrong, the answer is OpenAI's error body, with an id, and says nothing internal."""

from __future__ import annotations

import httpx
import pytest
from fastapi import Depends, FastAPI

from app.auth import public
from app.errors import RateLimitedError, retry_after
from tests.builders.operator import OPERATOR, Operator


def error(response: httpx.Response) -> dict[str, object]:
    body = response.json()["error"]
    assert {"message", "type", "param", "code"} <= body.keys()
    assert isinstance(body["code"], str)
    return body


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nope", "/admin/v1/tenants", "/v1/images/edits"])
async def test_unknown_route_gets_404_as_json(api: httpx.AsyncClient, path: str) -> None:
    response = await api.get(path)

    assert response.status_code == 404
    assert error(response)["code"] == "not_found"


async def test_wrong_method_gets_405_as_json(api: httpx.AsyncClient) -> None:
    response = await api.delete("/v1/models")

    assert (response.status_code, error(response)["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "GET"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"[1]", "invalid_type", None),
        (b"", "invalid_json", None),
        (b"\xff\xfe", "invalid_json", None),
        (b"[" * 100_000, "invalid_body", None),
        (b"{}", "missing_required_parameter", "slug"),
        (b'{"slug": 1}', "invalid_type", "slug"),
        (b'{"slug": "a", "is_admin": true}', "unknown_parameter", "is_admin"),
        (b'{"slug": "a", "limits": {"rpm": 1}}', "unknown_parameter", "limits.rpm"),
        (b'{"slug": "a", "limits": {"concurrency": -1}}', "invalid_value", "limits.concurrency"),
        (b'{"slug": "a", "metadata": {"k": "\\u0000"}}', "invalid_value", "metadata.k"),
    ],
)
async def test_bad_body_gets_400_that_names_the_field(
    admin: httpx.AsyncClient, body: bytes, code: str, param: str | None
) -> None:
    headers = {**OPERATOR, "content-type": "application/json"}
    response = await admin.post("/admin/v1/tenants", content=body, headers=headers)

    assert response.status_code == 400
    assert (error(response)["code"], error(response)["param"]) == (code, param)


async def test_name_of_an_unknown_field_is_cut_short(admin: httpx.AsyncClient) -> None:
    body = {"slug": "a", "x" * 100_000: 1}
    response = await admin.post("/admin/v1/tenants", json=body, headers=OPERATOR)

    assert error(response)["code"] == "unknown_parameter"
    assert len(response.content) < 2_000


async def test_body_over_the_limit_gets_413(admin: httpx.AsyncClient) -> None:
    async def chunks():  # no Content-Length: noticed while it is read
        for _ in range(5):
            yield b" " * (1 << 20)

    for content in (b" " * (5 << 20), chunks()):
        headers = {**OPERATOR, "content-type": "application/json"}
        response = await admin.post("/admin/v1/tenants", content=content, headers=headers)
        assert (response.status_code, error(response)["code"]) == (413, "request_too_large")


async def test_every_answer_has_an_id_that_the_client_did_not_choose(
    operator: Operator, api: httpx.AsyncClient
) -> None:
    acme = await operator.new_tenant("acme")
    chosen = {"x-request-id": "chosen"}
    answers = [
        await api.get("/v1/models", headers={**acme.headers, **chosen}),
        await api.get("/v1/models", headers=chosen),
        await api.get("/nope", headers=chosen),
        await api.get("/livez", headers=chosen),
    ]

    ids = [answer.headers["x-request-id"] for answer in answers]
    assert [answer.headers["request-id"] for answer in answers] == ids
    assert len(set(ids)) == len(ids) and "chosen" not in ids


async def test_unexpected_exception_gets_500_that_says_nothing(
    tenant_app: FastAPI, api: httpx.AsyncClient
) -> None:
    @tenant_app.get("/crash", dependencies=[Depends(public)])
    def crash() -> None:
        raise RuntimeError("secret detail")

    response = await api.get("/crash")

    assert (response.status_code, error(response)["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(("seconds", "header"), [(0, "1"), (0.2, "1"), (1.2, "2"), (86_400, "60")])
def test_retry_after_is_whole_bounded_seconds(seconds: float, header: str) -> None:
    assert retry_after(seconds) == {"retry-after": header}
    assert RateLimitedError(type="requests", retry_after_s=seconds).headers["retry-after"] == header
