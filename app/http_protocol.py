"""uvicorn's HTTP protocol, for clients that do not read, or hardly write.

ASGI has no word for what happens below a request. Closing waits until what is buffered has been
sent, which is never where the client has stopped to read; the kernel by itself would take megabytes
for it; and closing while the client still sends makes the kernel reset the connection, by which the
answer may be lost. Knows nothing of what requests say. Invariants: `cut` ends the connection at
once, and drops what was not sent; whoever sends waits while more than `WRITE_BUFFER_BYTES` wait
here and `UNSENT_BYTES` in the kernel; a head takes no longer than `HEAD_TIMEOUT_S` and little more
than `MAX_HEAD_BYTES`; a client that is answered in the midst of its body can read the answer, and
where its connection is kept the rest of that body is dropped, and is no part of what follows.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

WRITE_BUFFER_BYTES = 16 << 10
UNSENT_BYTES = 8 << 10
"""Beyond what is on its way: a client that reads is not slowed down."""
HEAD_TIMEOUT_S = 30.0
"""For the request line and the headers, from the connection's start or a request's first byte; and
for what is left of a body that has been answered."""
MAX_HEAD_BYTES = 64 << 10
LINGER_S = 5.0
"""For so long, what still comes of a body that was not waited for is read and dropped."""
_HEAD_TOO_LARGE = b"\r\n".join(
    (
        b"HTTP/1.1 431 Request Header Fields Too Large",
        b"connection: close",
        b"content-length: 0",
        b"\r\n",
    )
)
_EXTENSION = "tenfold.cut"
_IP = (socket.AF_INET, socket.AF_INET6)


class HttpProtocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=...)`."""

    _waiting: asyncio.TimerHandle | None = None
    """For what the client must send: nothing is computed for it meanwhile."""
    _lingering: asyncio.TimerHandle | None = None
    _is_in_head = False
    _head_bytes = 0

    # uvicorn says Transport where asyncio's own protocol says BaseTransport.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in _IP:
            with suppress(OSError):  # it may have been reset by now
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            return
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head or self.cycle is None or self.cycle.response_complete:
            self._wait()
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.write(_HEAD_TOO_LARGE)
                self.close_late()

    def on_message_begin(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"abort": self.transport.abort}}

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._wait_no_more()
        super().on_headers_complete()
        self.cycle.transport = _Answer(self, self.cycle)

    def on_message_complete(self) -> None:
        self._wait_no_more()
        super().on_message_complete()

    def close_late(self) -> None:
        """Close once the client has seen that there is nothing more to come, or `LINGER_S` on."""
        if self._lingering is not None or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._lingering = self.loop.call_later(LINGER_S, self.transport.close)
        self.transport.write_eof()

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class _Answer(asyncio.Transport):
    """Where one request's answer is written to. Closes at once only what has been read whole."""

    def __init__(self, protocol: HttpProtocol, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._protocol = protocol
        self._cycle = cycle

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        if self._cycle.more_body:
            self._protocol.close_late()
        else:
            self._protocol.transport.close()


def cut(scope: Scope) -> None:
    """End the connection of this request now. Nothing happens under another server."""
    extension = scope.get("extensions", {}).get(_EXTENSION)
    if extension is not None:
        extension["abort"]()
