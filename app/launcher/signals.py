"""Ctrl-C, SIGTERM and a closed terminal become one exception in the main thread.

Knows nothing of what is stopped. Invariant: the exception is not an `Exception`, so no handler of
errors swallows it; two signals within a second (a terminal and `make` both forward one) are one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

MIN_INTERVAL_S = 1.0


class StopRequested(BaseException):
    """Somebody asked the launcher to stop."""


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Within the block the main thread gets `StopRequested` for SIGINT, SIGTERM and SIGHUP."""
    last_at = -MIN_INTERVAL_S

    def request_stop(signum: int, frame: FrameType | None) -> None:
        nonlocal last_at
        now = time.monotonic()
        if now - last_at >= MIN_INTERVAL_S:
            last_at = now
            raise StopRequested

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup, a hang-up is not meant
        wanted.append(signal.SIGHUP)
    previous = {signum: signal.signal(signum, request_stop) for signum in wanted}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
