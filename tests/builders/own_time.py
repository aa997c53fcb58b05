"""A clock that stands still while its thread waits for a processor.

On a busy machine everything takes longer, also what waits for nothing: what is measured by this
clock is what a program does and whom it waits for. Knows nothing of either. Invariant: it is never
ahead of the monotonic clock; where the kernel does not say who waited, it is that.
"""

from __future__ import annotations

import time
from pathlib import Path

_SCHEDULED = Path("/proc/thread-self/schedstat")
"""Nanoseconds: on a processor, and waiting for one; and how often."""


def own_time_s() -> float:
    """Of the thread that asks."""
    return time.monotonic() - _waited_s()


def _waited_s() -> float:
    try:
        return int(_SCHEDULED.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
