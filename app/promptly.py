"""An answer in time, or none: how long a request waits for what it depends on.

Knows nothing of what is asked. Invariant: nobody waits longer than was said, also where what was
asked cannot be stopped that soon: it is left to end by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from app.errors import UnavailableError

T = TypeVar("T")

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
        await asyncio.wait((task,), timeout=timeout_s)
        if task.done():
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
        await asyncio.wait((task,), timeout=timeout_s)
        return task.done()
    finally:
        _leave(task)


def _leave(task: asyncio.Task[Any]) -> None:
    _left.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # seen; whoever asked has had an answer
