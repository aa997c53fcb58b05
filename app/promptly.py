"""An answer in time, or none: how long a request waits for what it depends on.

Knows nothing of what is asked. Invariants: nobody waits longer than was said, also where what was
asked cannot be stopped that soon: it is left to end by itself; a process that is late itself looks
at what has come meanwhile before it calls somebody else late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from app.errors import UnavailableError

T = TypeVar("T")

SLICES = 5
"""Of a wait. While the event loop takes longer for one turn than for a slice, there are as many
turns in it, and an answer that needs several of them is heard; else they change nothing."""

_left: set[asyncio.Task[Any]] = set()  # the event loop itself keeps no task alive


class TooLateError(UnavailableError):
    """It did not answer in time; it may have done what it was asked."""


async def promptly(work: Coroutine[Any, Any, T], timeout_s: float, *, of: str = "registry") -> T:
    """The result of `work`. Raises TooLateError where that takes longer than `timeout_s`.

    The work is cancelled then and not waited for: a connection on which nothing is heard may take
    seconds to be let go. `of` is who is late, for the log.
    """
    task = asyncio.create_task(work)
    try:
        if await is_done_within(task, timeout_s):
            return task.result()
        raise TooLateError(internal=f"{of}: slow")
    finally:
        if not task.done():
            task.cancel()
            _leave(task)


async def done_or_left(work: Coroutine[Any, Any, None], timeout_s: float) -> bool:
    """Whether `work` was done within `timeout_s`. If not, it goes on by itself."""
    task = asyncio.create_task(work)
    try:
        return await is_done_within(task, timeout_s)
    finally:
        _leave(task)


async def is_done_within(future: asyncio.Future[Any], timeout_s: float) -> bool:
    """Wait for it. It is not cancelled where it takes longer."""
    for _ in range(SLICES):
        await asyncio.wait((future,), timeout=timeout_s / SLICES)
        if future.done():
            return True
    return False


def _leave(task: asyncio.Task[Any]) -> None:
    _left.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # seen; whoever asked has had an answer
