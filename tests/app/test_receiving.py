"""An upload's body is taken at the pace that its client keeps, not at the server's."""

from __future__ import annotations

import asyncio

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive

from app import receiving
from app.errors import ApiError
from app.receiving import body_chunks, too_large

STALL_S = 0.2
PIECE = bytes(100)


def request_of(pieces: int, *, pause_s: float = 0.0) -> Request:
    """One that brings so many pieces, each after a pause."""
    left = pieces

    async def receive() -> Message:
        nonlocal left
        await asyncio.sleep(pause_s)
        left -= 1
        return {"type": "http.request", "body": PIECE, "more_body": left > 0}

    return over(receive)


def over(receive: Receive) -> Request:
    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def taken(request: Request, *, max_bytes: int = 1 << 20, digest_s: float = 0.0) -> bytes:
    body = b""
    async for chunk in body_chunks(request, max_bytes, lambda: too_large(max_bytes)):
        await asyncio.sleep(digest_s)
        body += chunk
    return body


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "STALL_TIMEOUT_S", STALL_S)
    monkeypatch.setattr(receiving, "CHUNK_BYTES", 1)


async def test_a_client_that_trickles_is_told_so_and_its_connection_closed() -> None:
    with pytest.raises(ApiError) as caught:
        await taken(request_of(100, pause_s=STALL_S / 4))
    assert (caught.value.status, caught.value.code) == (408, "upload_too_slow")
    assert caught.value.headers["connection"] == "close"


async def test_the_time_that_the_server_takes_is_not_the_clients() -> None:
    assert await taken(request_of(5), digest_s=STALL_S / 2) == 5 * PIECE


async def test_a_client_that_stops_is_told_so() -> None:
    with pytest.raises(ApiError) as caught:
        await taken(request_of(1, pause_s=60.0))
    assert caught.value.code == "upload_too_slow"


async def test_a_body_that_is_not_waited_for_any_more_was_an_upload_too_slow() -> None:
    async def receive() -> Message:
        raise HTTPException(408)

    with pytest.raises(ApiError) as caught:
        await taken(over(receive))
    assert caught.value.code == "upload_too_slow"


async def test_a_body_of_more_than_it_may_have_is_refused() -> None:
    assert await taken(request_of(3), max_bytes=300) == 3 * PIECE
    with pytest.raises(ApiError) as caught:
        await taken(request_of(4), max_bytes=300)
    assert caught.value.status == 413
