"""A body that hardly arrives is not waited for; one that is large is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from app.body_timeout import MIN_BYTES_PER_S, BodyTimeout

TIMEOUT_S = 0.2
PIECE_S = 0.05
NEVER_S = 60.0


class Client:
    """Sends `pieces`, one every `PIECE_S`, and then nothing until it has gone."""

    def __init__(self, pieces: Iterator[bytes], *, is_endless: bool = False) -> None:
        self._pieces = pieces
        self._is_endless = is_endless
        self._has_ended = False

    async def receive(self) -> Message:
        await asyncio.sleep(PIECE_S)
        if self._has_ended:
            await asyncio.sleep(2 * TIMEOUT_S)
            return {"type": "http.disconnect"}
        piece = next(self._pieces, None)
        if piece is None and not self._is_endless:
            self._has_ended = True
        elif piece is None:
            await asyncio.sleep(NEVER_S)
        return {"type": "http.request", "body": piece or b"", "more_body": not self._has_ended}


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass


async def read_and_stay(scope: Scope, receive: Receive, send: Send) -> None:
    await read_all(scope, receive, send)
    assert (await receive())["type"] == "http.disconnect"


async def read_slowly(scope: Scope, receive: Receive, send: Send) -> None:
    for _ in range(2):
        await receive()
        await asyncio.sleep(2 * TIMEOUT_S)
    await read_all(scope, receive, send)


async def send_nothing(message: Message) -> None:
    raise AssertionError("nothing is to be sent")


async def serve(app: object, client: Client, timeout_s: float = TIMEOUT_S) -> None:
    patient = BodyTimeout(app, timeout_s)  # type: ignore[arg-type]  # (some take few events)
    async with asyncio.timeout(NEVER_S / 2):
        await patient({"type": "http"}, client.receive, send_nothing)


@pytest.mark.parametrize("pieces", [[], [b"{"], [b"x"] * 1000])
async def test_a_body_that_hardly_arrives_is_408_in_bounded_time(pieces: list[bytes]) -> None:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with pytest.raises(HTTPException) as refused:
        await serve(read_all, Client(iter(pieces), is_endless=True))
    assert refused.value.status_code == 408
    assert loop.time() - began_at < 10 * TIMEOUT_S


async def test_a_large_body_has_its_time() -> None:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    await serve(read_all, Client(iter([bytes(MIN_BYTES_PER_S)] * 8)))
    assert loop.time() - began_at > 1.5 * TIMEOUT_S, "it took no longer than a small one may"


async def test_what_the_server_takes_does_not_count() -> None:
    await serve(read_slowly, Client(iter([b"x", b"y"])), timeout_s=1.5 * TIMEOUT_S)


async def test_a_request_that_is_here_may_be_answered_as_late_as_it_likes() -> None:
    await serve(read_and_stay, Client(iter([b"{}"])))
