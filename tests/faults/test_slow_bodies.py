"""Bodies that hardly arrive, over real connections, on both ports."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest

from app.api import create_admin_app, create_app
from app.context import open_context
from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import OPERATOR, Operator, Tenant
from tests.builders.server import serving

BODY_TIMEOUT_S = 0.5
BOUND_S = 10.0
"""On a busy machine."""
PIECE_BYTES = 8192
PIECE_S = 0.05


@dataclass(frozen=True, slots=True)
class Ports:
    tenants: str
    admin: str


@pytest.fixture
async def ports(settings: Settings) -> AsyncIterator[Ports]:
    changes = {"body_timeout_s": BODY_TIMEOUT_S, "api_id": "api-with-little-patience"}
    async with (
        open_context(settings.model_copy(update=changes)) as context,
        serving(create_app(context)) as tenants,
        serving(create_admin_app(context)) as admin,
    ):
        yield Ports(tenants, admin)


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme")


async def trickle(
    url: str, path: str, headers: dict[str, str], content_type: str = "application/json"
) -> tuple[int, str, float]:
    """A byte every so often, until there is an answer: its status, its code, and when it came."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = [f"POST {path} HTTP/1.1", f"host: {parts.hostname}", f"content-type: {content_type}"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*head, "content-length: 100000", "", "{"]).encode())
    began_at = time.monotonic()
    answering = asyncio.create_task(reader.read())  # to the end of the connection
    while not answering.done():
        writer.write(b" ")
        await asyncio.wait((answering,), timeout=PIECE_S)
        assert time.monotonic() - began_at < BOUND_S, "it is still waiting"
    writer.close()
    answer_head, _, body = (await answering).partition(b"\r\n\r\n")
    status = int(answer_head.split()[1])
    return status, json.loads(body)["error"]["code"], time.monotonic() - began_at


async def test_a_json_body_that_trickles_is_408_on_the_tenants_port(
    ports: Ports, acme: Tenant
) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        status, code, seconds = await trickle(ports.tenants, path, acme.headers)
        assert (status, code) == (408, "body_timeout")
        assert seconds > 0.8 * BODY_TIMEOUT_S


async def test_a_json_body_that_trickles_is_408_on_the_admin_port(ports: Ports) -> None:
    status, code, _ = await trickle(ports.admin, "/admin/v1/tenants", OPERATOR)
    assert (status, code) == (408, "body_timeout")


async def test_an_upload_that_trickles_is_408_too(
    ports: Ports, operator: Operator, acme: Tenant
) -> None:
    await operator.new_adapter("acme", "bot")
    path, kind = "/v1/adapters/bot/versions", "multipart/form-data; boundary=x"
    status, code, _ = await trickle(ports.tenants, path, acme.headers, kind)
    assert (status, code) == (408, "upload_too_slow")


async def test_control_a_large_upload_over_a_slow_line_is_taken(
    ports: Ports, operator: Operator, tiny_base: BaseSpec
) -> None:
    await operator.new_tenant("globex")
    await operator.new_adapter("globex", "bot")
    files = {name: (name, data) for name, data in adapter_files(tiny_base, rank=64).items()}
    path = "/admin/v1/tenants/globex/adapters/bot/versions"
    request = httpx.Request("POST", f"{ports.admin}{path}", files=files, headers=OPERATOR)
    content = request.read()

    async def slowly() -> AsyncIterator[bytes]:
        for begin in range(0, len(content), PIECE_BYTES):
            yield content[begin : begin + PIECE_BYTES]
            await asyncio.sleep(PIECE_S)

    headers = {**OPERATOR, "content-type": request.headers["content-type"]}
    began_at = time.monotonic()
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(request.url, content=slowly(), headers=headers)
    assert response.status_code == 201, response.text
    assert time.monotonic() - began_at > BODY_TIMEOUT_S, "it was not slow"
