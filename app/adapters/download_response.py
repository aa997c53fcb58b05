"""A file on its way to a client that may stop to read.

Knows nothing of adapters. Invariants: what goes wrong before the first piece is an ordinary error;
after it the connection is cut, so that no client takes half a file for the whole; the source of
the pieces is closed before the response ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import structlog
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.completions.connection import (
    ClientGoneError,
    client_is_gone,
    hand_over,
    while_connected,
)
from app.errors import ApiError
from app.http_protocol import cut

log = structlog.get_logger()

CHUNK_BYTES = 64 << 10
"""Of which a client takes one within the time-out, or it has stopped to read."""


class DownloadResponse(Response):
    """Sends `pieces`. A client that takes nothing for `stall_timeout_s` is cut off."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        *,
        stall_timeout_s: float,
    ) -> None:
        super().__init__()
        self._pieces = pieces
        self._sent_headers = Headers(headers)
        self._stall_timeout_s = stall_timeout_s
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            try:
                await while_connected(receive, self._send_all(send))
            except ClientGoneError:
                log.info("client_gone")
            except ApiError as error:
                if not self._has_started:
                    raise
                log.warning("download_cut", code=error.code, detail=error.internal)
                cut(scope)
                await client_is_gone(receive)

    async def _send_all(self, send: Send) -> None:
        async for piece in self._pieces:
            if not self._has_started:
                self._has_started = True
                headers = self._sent_headers.raw
                await self._hand_over(
                    send, {"type": "http.response.start", "status": 200, "headers": headers}
                )
            for start in range(0, len(piece), CHUNK_BYTES):
                chunk = piece[start : start + CHUNK_BYTES]
                await self._hand_over(
                    send, {"type": "http.response.body", "body": chunk, "more_body": True}
                )
        await self._hand_over(send, {"type": "http.response.body", "body": b""})

    async def _hand_over(self, send: Send, message: Message) -> None:
        await hand_over(send, message, self._stall_timeout_s)
