"""Free and taken ports of 127.0.0.1. Knows nothing of who will listen on them."""

from __future__ import annotations

import random
import socket

from app.launcher.errors import PortInUseError

LOOPBACK = "127.0.0.1"
# Linux gives connections ports from 32768 on, unless told otherwise.
BELOW_CONNECTIONS = (10_000, 32_768)


def free_port() -> int:
    """A port that was free a moment ago. Another process may take it first: be ready to retry.

    Not one that the system would give to a connection of its own before somebody listens on it.
    """
    while True:
        port = random.randrange(*BELOW_CONNECTIONS)
        try:
            check_port_free(port)
        except PortInUseError:
            continue
        return port


def check_port_free(port: int, option: str = "--port", host: str = LOOPBACK) -> None:
    """Raise PortInUseError if the port cannot be bound. `option` is what would change it."""
    with socket.socket() as sock:
        # As servers do, or a connection in TIME_WAIT of the last run would count as a listener.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise PortInUseError(host, port, error.strerror or str(error), option) from None
