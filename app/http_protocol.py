"""uvicorn's HTTP protocol, for clients that do not read: what waits for them is bounded, and they
can be cut off.

ASGI has no word for either: closing waits until what is buffered has been sent, which is never
where the client has stopped to read; and the kernel by itself would take megabytes for it. Knows
nothing of requests. Invariants: `cut` ends the connection at once, and drops what was not sent;
whoever sends waits while more than `WRITE_BUFFER_BYTES` wait here and `UNSENT_BYTES` in the kernel.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

WRITE_BUFFER_BYTES = 16 << 10
UNSENT_BYTES = 8 << 10
"""Beyond what is on its way: a client that reads is not slowed down."""
_EXTENSION = "tenfold.cut"
_IP = (socket.AF_INET, socket.AF_INET6)


class HttpProtocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=...)`."""

    # uvicorn says Transport where asyncio's own protocol says BaseTransport.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in _IP:
            with suppress(OSError):  # it may have been reset by now
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"abort": self.transport.abort}}


def cut(scope: Scope) -> None:
    """End the connection of this request now. Nothing happens under another server."""
    extension = scope.get("extensions", {}).get(_EXTENSION)
    if extension is not None:
        extension["abort"]()
