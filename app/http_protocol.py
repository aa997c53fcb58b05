"""uvicorn's HTTP protocol, whose applications can cut a connection that nobody reads.

ASGI has no word for that: closing waits until what is buffered has been sent, which is never where
the client has stopped to read. Knows nothing of requests. Invariant: `cut` ends the connection at
once, and drops what was not sent.
"""

from __future__ import annotations

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EXTENSION = "tenfold.cut"


class HttpProtocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=...)`."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"abort": self.transport.abort}}


def cut(scope: Scope) -> None:
    """End the connection of this request now. Nothing happens under another server."""
    extension = scope.get("extensions", {}).get(_EXTENSION)
    if extension is not None:
        extension["abort"]()
