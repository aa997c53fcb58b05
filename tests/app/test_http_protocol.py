"""Clients that hardly write, or go on writing when they have been answered, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from starlette.types import Receive, Scope, Send

from app import http_protocol
from app.http_protocol import MAX_HEAD_BYTES, HttpProtocol
from tests.builders.server import serving

PAUSE_S = 0.02
HEAD_TIMEOUT_S = 0.2
UNFINISHED_POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers without a look at the body, and closes where there is one, but for /kept."""
    headers = [(b"content-length", b"2")]
    if scope["method"] == "POST" and scope["path"] != "/kept":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 408, "headers": headers})
    await send({"type": "http.response.body", "body": b"no"})


@pytest.fixture
async def connection(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connection]:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", HEAD_TIMEOUT_S)
    async with serving(refuses) as url:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        yield reader, writer
        writer.close()


async def write_on(writer: asyncio.StreamWriter, times: int = 10) -> None:
    for _ in range(times):
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(PAUSE_S)


async def test_a_client_that_is_answered_amid_its_body_can_read_the_answer(
    connection: Connection,
) -> None:
    reader, writer = connection
    writer.write(UNFINISHED_POST)
    await write_on(writer)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 408 ") and answer.endswith(b"\r\n\r\nno")


async def test_control_a_connection_closed_at_once_is_reset(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpProtocol, "close_late", lambda self: self.transport.close())
    reader, writer = connection
    writer.write(UNFINISHED_POST)
    with pytest.raises(ConnectionError):
        await write_on(writer)
        await reader.read()


async def test_lingering_ends_though_the_client_goes_on(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_S", PAUSE_S)
    _, writer = connection
    writer.write(UNFINISHED_POST)
    with pytest.raises(ConnectionError):
        await write_on(writer, 500)


async def test_a_head_that_trickles_is_not_waited_for(connection: Connection) -> None:
    _, writer = connection
    writer.write(b"GET / HTTP/1.1\r\nx: ")
    with pytest.raises(ConnectionError):
        await write_on(writer, 500)


async def test_nor_is_a_second_one_on_the_same_connection(connection: Connection) -> None:
    reader, writer = connection
    writer.write(GET)
    await reader.readuntil(b"\r\n\r\nno")
    with pytest.raises(ConnectionError):
        await write_on(writer, 500)


async def test_the_rest_of_an_answered_body_is_no_part_of_what_follows(
    connection: Connection,
) -> None:
    reader, writer = connection
    num_bytes = 4 * MAX_HEAD_BYTES
    writer.write(b"POST /kept HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % num_bytes)
    assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 408 ")
    for _ in range(8):
        writer.write(bytes(num_bytes // 8))
        await writer.drain()
        await asyncio.sleep(PAUSE_S / 4)
    writer.write(GET)
    assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 408 ")


async def test_the_rest_of_an_answered_body_is_not_waited_for_for_ever(
    connection: Connection,
) -> None:
    reader, writer = connection
    writer.write(UNFINISHED_POST.replace(b"/ ", b"/kept "))
    await reader.readuntil(b"no")
    with pytest.raises(ConnectionError):
        await write_on(writer, 500)


async def test_a_head_without_end_is_refused(connection: Connection) -> None:
    reader, writer = connection
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n")
    for _ in range(20):
        writer.write(b"x-more: " + bytes(b"a" * (MAX_HEAD_BYTES // 8)) + b"\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 431 ")


async def test_control_a_head_below_the_bound_is_taken(connection: Connection) -> None:
    reader, writer = connection
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nx-more: " + b"a" * (MAX_HEAD_BYTES // 2))
    await asyncio.sleep(PAUSE_S)
    writer.write(b"\r\n\r\n")
    assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 408 ")
