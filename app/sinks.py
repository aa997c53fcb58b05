"""Files that are written in threads, so that no disk stops the event loop.

Knows nothing of what is written. Invariant: a file that was opened is closed, also where whoever
opened it is cancelled before it is open, or while it is being closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

T = TypeVar("T")

_under_way: set[asyncio.Task[Any]] = set()  # the event loop itself keeps no task alive


@asynccontextmanager
async def new_file(path: Path) -> AsyncIterator[BinaryIO]:
    """A file that was not there, to write to. Raises FileExistsError."""
    opening = _begin(lambda: cast(BinaryIO, path.open("xb")))
    try:
        sink = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise
    try:
        yield sink
    finally:
        await to_its_end(sink.close)


async def to_its_end(work: Callable[[], T]) -> T:
    """What `work` returns, which is done in a thread; also if nobody waits for it any more."""
    return await asyncio.shield(_begin(work))


def _begin(work: Callable[[], T]) -> asyncio.Task[T]:
    task = asyncio.create_task(asyncio.to_thread(work))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    return task


def _close(opening: asyncio.Task[BinaryIO]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
