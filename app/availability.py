"""Whether something that requests depend on answers: found out once, not by every request.

Who is late is away, and is asked no more: requests are refused at once, and what they would have
asked does not pile up, until one probe after the other has been answered. Knows nothing of what it
is. Invariant: a request waits for a dependency no longer than `timeout_s`, and one that is back is
asked again within a probe's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from app.errors import UnavailableError
from app.promptly import TooLateError, done_or_left, promptly
from engine.transport.errors import QueueUnavailableError

log = structlog.get_logger(__name__)

PROBE_INTERVAL_S = 0.1

T = TypeVar("T")


class Availability:
    """Of one dependency, in one process. `close` at the end."""

    def __init__(
        self, name: str, probe: Callable[[], Coroutine[Any, Any, object]], *, timeout_s: float
    ) -> None:
        """`probe` raises UnavailableError or QueueUnavailableError where it does not answer."""
        self.name = name
        self._probe = probe
        self._timeout_s = timeout_s
        self._probing: asyncio.Task[None] | None = None

    @property
    def is_away(self) -> bool:
        return self._probing is not None and not self._probing.done()

    async def ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` gives. Raises UnavailableError: at once while away, or after `timeout_s`."""
        if self.is_away:
            raise UnavailableError(internal=f"{self.name}: away")
        try:
            return await promptly(work(), self._timeout_s, of=self.name)
        except TooLateError:
            self._note_late()
            raise

    async def tell(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """See that `work` is begun; wait for its end only while there is somebody to hear it."""
        if not await done_or_left(work(), 0 if self.is_away else self._timeout_s):
            self._note_late()

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    def _note_late(self) -> None:
        if not self.is_away:
            log.warning("dependency_away", dependency=self.name)
            self._probing = asyncio.create_task(self._wait_for_it(), name=f"probe-{self.name}")

    async def _wait_for_it(self) -> None:
        while True:
            try:
                await promptly(self._probe(), self._timeout_s, of=self.name)
                break
            except (UnavailableError, QueueUnavailableError):
                await asyncio.sleep(PROBE_INTERVAL_S)
        log.info("dependency_back", dependency=self.name)
