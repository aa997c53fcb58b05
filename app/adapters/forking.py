"""The process that makes confined processes: a new one for each connection that comes.

It has loaded all that they need before, so that one costs a fork and not half a second of imports.
Knows nothing of what they do. Invariants: it reads no tenant's byte; it ends when stdin does.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable


def serve_connections(act: Callable[[int], None]) -> None:
    """Do `act` in a process of its own for each connection that comes over the socket on stdin.

    `act` is given the connection's descriptor. Returns when whoever started this is gone.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with socket.socket(fileno=0) as control:
        while True:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not descriptors:
                return
            if os.fork() == 0:
                control.close()
                try:
                    act(descriptors[0])
                finally:
                    os._exit(0)
            os.close(descriptors[0])
