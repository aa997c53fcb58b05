"""Work that is only worth doing while the client is there.

Knows nothing of completions. Invariant: when the client goes, the work is cancelled at once and
has cleaned up before anything else happens; Starlette does that for no plain handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Message, Receive, Send

from app.errors import ApiError

CANCEL_AGAIN_S = 1.0

T = TypeVar("T")


class ClientGoneError(ApiError):
    """Nobody reads this answer; 499 is for the log."""

    def __init__(self) -> None:
        super().__init__(499, "client_closed_request", "invalid_request_error", "Client closed.")


class ClientTooSlowError(ApiError):
    """The client holds its connection open and does not read; for the log and the ledger."""

    def __init__(self) -> None:
        super().__init__(408, "client_too_slow", "timeout", "The client does not read its stream.")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises ClientGoneError if the client hangs up before it is there.

    The request's body must have been read: from then on, all there is to receive is the end.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(client_is_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        await _end(watching)
        await _end(working)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel the task, wait until it has cleaned up, and drop what it says."""
    while not task.done():
        task.cancel()
        # Once is not always enough: redis-py may lose a cancellation in its own time-outs.
        await asyncio.wait((task,), timeout=CANCEL_AGAIN_S)
    await asyncio.gather(task, return_exceptions=True)


async def client_is_gone(receive: Receive) -> None:
    """Returns when the connection has ended."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def hand_over(send: Send, message: Message, timeout_s: float) -> None:
    """Send, which waits while the client reads nothing. Raises ClientTooSlowError."""
    try:
        async with asyncio.timeout(timeout_s):
            await send(message)
    except TimeoutError:
        raise ClientTooSlowError from None
