"""SIGTERM and SIGINT, as calls on a thread of their own.

A handler of Python's runs in the main thread, and not before that executes bytecode again: a signal
that comes just before the main thread begins to wait for a message, or that another thread gets, is
heard when a message comes, which may be never. And it interrupts the main thread wherever that is,
also where it holds a lock that the handler needs. So here the handlers do nothing; what counts is
the byte that the interpreter writes at once, whichever thread has the signal. Knows nothing of
engines. Invariant: every signal becomes one call, however busy or idle the main thread is.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable

ENDING = (signal.SIGTERM, signal.SIGINT)


def call_on_signals(act: Callable[[], None]) -> None:
    """From now on call `act` for each signal that asks to end. Call it in the main thread."""
    heard, said = socket.socketpair()
    said.setblocking(False)  # what a signal writes must never wait
    threading.Thread(target=_listen, args=(heard, act), name="signals", daemon=True).start()
    for number in ENDING:
        signal.signal(number, _do_nothing)
    # NOTE: the descriptor stays open for as long as the process: the interpreter writes to it.
    signal.set_wakeup_fd(said.detach(), warn_on_full_buffer=False)


def _listen(heard: socket.socket, act: Callable[[], None]) -> None:
    while numbers := heard.recv(64):
        for number in numbers:  # of other signals, too, that somebody handles
            if number in ENDING:
                act()


def _do_nothing(number: int, frame: object) -> None:
    pass
