"""Waits for what other threads and processes bring about. Knows nothing of what that is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

POLL_S = 0.01


def wait_until(is_true: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """Return when `is_true()`; fail the test when it is not within `timeout_s`."""
    give_up_at = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < give_up_at, "it did not come about in time"
        time.sleep(POLL_S)


async def until(is_true: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    """`wait_until` for tests on an event loop."""
    give_up_at = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < give_up_at, "it did not come about in time"
        await asyncio.sleep(POLL_S)


async def eventually(is_true: Callable[[], Awaitable[bool]], *, timeout_s: float = 10.0) -> None:
    """`until` for what has to be asked for."""
    give_up_at = time.monotonic() + timeout_s
    while not await is_true():
        assert time.monotonic() < give_up_at, "it did not come about in time"
        await asyncio.sleep(POLL_S)
