"""Ends the wait for a body that hardly arrives.

Plain ASGI, on both ports, around every route. Knows nothing of routes or of what a body holds.
Invariant: a request waits for its body no longer than `timeout_s`, and a second more for every
`MIN_BYTES_PER_S` of it that have come: so a large upload has its time, and a trickle has not. What
the server itself takes to digest the body does not count.
"""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_BYTES_PER_S = 8 << 10
"""What an upload must bring, too."""


class BodyTimeout:
    """Answers 408 `body_timeout`, and closes the connection."""

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self.app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = _Patient(receive, self._timeout_s)
        await self.app(scope, receive, send)


class _Patient:
    """`receive` of one request. Raises HTTPException 408 while its body is not whole."""

    def __init__(self, receive: Receive, left_s: float) -> None:
        self._receive = receive
        self._left_s = left_s
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:  # all there is to hear from now on is that the client has gone
            return await self._receive()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            async with asyncio.timeout(self._left_s):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408) from None
        waited_s = loop.time() - began_at
        self._left_s += len(message.get("body", b"")) / MIN_BYTES_PER_S - waited_s
        self._is_whole = not message.get("more_body", False)
        return message
