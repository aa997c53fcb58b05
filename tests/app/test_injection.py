"""Text that means something to SQL means nothing here, wherever it is put."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest

from tests.builders.operator import Operator

PAYLOADS = [
    "' OR '1'='1",
    "'; DROP TABLE tenants; --",
    '" OR ""="',
    "1; SELECT pg_sleep(10)",
    "') UNION SELECT key_hash FROM api_keys --",
    "%' OR slug LIKE '%",
    "\\'; --",
    "$1",
    ":tenant_id",
    "\x00",
    "%00",
    "acme\u0000",
    "😀",
]


@pytest.mark.parametrize("payload", PAYLOADS)
async def test_payload_is_refused_like_any_unknown_text(
    operator: Operator, api: httpx.AsyncClient, payload: str
) -> None:
    acme = await operator.new_tenant("acme")
    quoted = quote(payload, safe="")

    for path in (f"/tenants/{quoted}", f"/tenants/acme/keys/{quoted}", f"/requests/{quoted}"):
        assert (await operator.call("GET", path)).status_code == 404
    for path in (
        f"/v1/models/{quoted}",
        f"/v1/models/bot:{quoted}",
        f"/v1/adapters/{quoted}",
        f"/t/{quoted}/v1/models",
    ):
        assert (await api.get(path, headers=acme.headers)).status_code == 404, path
    for headers in (
        {"x-api-key": payload.encode()},
        {"authorization": f"Bearer {payload}".encode()},
    ):
        response = await api.get("/v1/models", headers=headers)
        assert response.status_code == 401
    created = await operator.call("POST", "/tenants", json={"slug": payload})
    assert created.status_code == 422
    listed = await operator.call("GET", "/tenants", params={"after": payload})
    assert listed.status_code == 400

    tenants = await operator.done("GET", "/tenants")
    assert [row["slug"] for row in tenants["data"]] == ["acme"]


@pytest.mark.parametrize("payload", [p for p in PAYLOADS if "\x00" not in p])
async def test_payload_that_may_be_stored_comes_back_as_it_was(
    operator: Operator, payload: str
) -> None:
    body = {"slug": "acme", "external_id": payload, "metadata": {payload: payload}}
    created = await operator.done("POST", "/tenants", json=body)
    read = await operator.done("GET", "/tenants/acme")
    assert read["external_id"] == payload and read["metadata"] == created["metadata"]
