"""An HTTP client that is nothing but a socket: it can stop to read, or be gone without a word.

Knows nothing of what it asks for. Invariant: `vanish` sends a reset, as a client does that dies.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time at all


class RawClient:
    """One connection, and requests on it."""

    def __init__(self, url: str, *, receive_buffer: int | None = None) -> None:
        """receive_buffer: bytes that may be under way to a client that does not read."""
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._host = parts.hostname
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(30)
        self._socket.connect((parts.hostname, parts.port))

    def get(self, path: str, headers: Mapping[str, str]) -> None:
        """Send the request, and read nothing."""
        head = [f"GET {path} HTTP/1.1", f"host: {self._host}"]
        head += [*(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self._socket.sendall("\r\n".join(head).encode())

    def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Send the request, and read nothing."""
        content = json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", f"host: {self._host}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        head += ["content-type: application/json", f"content-length: {len(content)}", "", ""]
        self._socket.sendall("\r\n".join(head).encode() + content)

    def read(self, num_bytes: int) -> bytes:
        """What has come, at least one byte of it; none where the connection has ended."""
        try:
            return self._socket.recv(num_bytes)
        except ConnectionError:
            return b""

    def vanish(self) -> None:
        """Be gone: a reset, whatever was under way."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._socket.close()

    def close(self) -> None:
        self._socket.close()
