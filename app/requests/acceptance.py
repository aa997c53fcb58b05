"""Accepts requests: a row each, committed before anything is enqueued.

Arrivals within `linger_s`, and those that come while a commit is under way, share one statement and
one commit. Knows nothing of HTTP or of the queue. Invariants: `accept` returns once the rows are
committed, and answers within `timeout_s` whatever Postgres does; what was or may have been
committed for a caller who no longer waits is ended here, as `not_enqueued`, and while that is too
much nothing more is begun.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from app.errors import UnavailableError
from app.promptly import is_done_within
from app.requests.acceptance_repository import (
    LOST,
    AcceptanceConnection,
    NewRequest,
    is_in_doubt,
)

log = structlog.get_logger()

LINGER_S = 0.002
MAX_ROWS = 500
MAX_UNSETTLED = 4 * MAX_ROWS
TIMEOUT_S = 0.2
SETTLE_INTERVAL_S = 0.5
HURRIED_SHARE = 0.25
NOT_ENQUEUED = "not_enqueued"


@dataclass(frozen=True, slots=True, eq=False)
class _Arrival:
    rows: Sequence[NewRequest]
    committed: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def is_committed(self) -> bool:
        future = self.committed
        return future.done() and not future.cancelled() and future.exception() is None


class Acceptance:
    """One per API process: `start`, any number of `accept` at once, `close`."""

    def __init__(
        self,
        database_url: str,
        *,
        linger_s: float = LINGER_S,
        max_rows: int = MAX_ROWS,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._connection = AcceptanceConnection(database_url)
        self._linger_s = linger_s
        self._max_rows = max_rows
        self._timeout_s = timeout_s
        self._arrivals: deque[_Arrival] = deque()
        self._unsettled: list[NewRequest] = []
        self._has_arrivals = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.num_commits = 0

    @property
    def num_unsettled(self) -> int:
        """Rows that may be committed, and that nobody waits for."""
        return len(self._unsettled)

    async def start(self) -> None:
        """Begin; does not fail where Postgres is down."""
        try:
            await self._connection.connect()
        except LOST as error:
            log.warning("acceptance_unreachable", error=type(error).__name__)
        self._task = asyncio.create_task(self._run(), name="acceptance")

    async def close(self) -> None:
        """Refuse who still waits, and let go of the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._arrivals:
            self._refuse(list(self._arrivals), "closing")
        self._connection.terminate()

    async def accept(self, requests: Sequence[NewRequest], *, is_hurried: bool = False) -> None:
        """Commit a row for each, all or none. Raises UnavailableError, within `timeout_s`.

        is_hurried: within a quarter of it; the caller has waited for Postgres before.
        """
        arrival = _Arrival(requests)
        self._arrivals.append(arrival)
        self._has_arrivals.set()
        timeout_s = self._timeout_s * (HURRIED_SHARE if is_hurried else 1)
        try:
            is_answered = await is_done_within(arrival.committed, timeout_s)
        except asyncio.CancelledError:
            if arrival.is_committed:  # in the same instant
                self._unsettled += requests
                self._has_arrivals.set()
            raise
        finally:
            arrival.committed.cancel()  # how `_run` knows that nobody waits
        if not is_answered:
            raise UnavailableError(internal="acceptance: Postgres is slow")
        arrival.committed.result()

    async def _run(self) -> None:
        while True:
            await self._wait()
            await asyncio.sleep(self._linger_s)
            batch = self._take()
            if batch:
                await self._commit(batch)
            if self._unsettled:
                await self._settle()

    async def _wait(self) -> None:
        """Until something arrives; not for long while something is to be settled."""
        if self._arrivals:
            return
        self._has_arrivals.clear()
        try:
            async with asyncio.timeout(SETTLE_INTERVAL_S if self._unsettled else None):
                await self._has_arrivals.wait()
        except TimeoutError:
            return

    def _take(self) -> list[_Arrival]:
        """Who still waits, first come first, up to `max_rows` rows."""
        batch: list[_Arrival] = []
        num_rows = 0
        while self._arrivals and num_rows < self._max_rows:
            arrival = self._arrivals.popleft()
            if not arrival.committed.done():
                batch.append(arrival)
                num_rows += len(arrival.rows)
        return batch

    async def _commit(self, batch: list[_Arrival]) -> None:
        rows = [row for arrival in batch for row in arrival.rows]
        if len(self._unsettled) >= MAX_UNSETTLED:
            self._refuse(batch, "too much is in doubt")
            return
        try:
            await self._connection.connect()
        except Exception as error:  # see `_refuse_for`
            self._refuse_for(error, batch)
            return
        try:
            await self._connection.insert(rows)
        except Exception as error:  # see `_refuse_for`
            if is_in_doubt(error):
                self._unsettled += rows
            self._refuse_for(error, batch)
            return
        self.num_commits += 1
        for arrival in batch:
            if arrival.committed.done():
                self._unsettled += arrival.rows
            else:
                arrival.committed.set_result(None)

    def _refuse_for(self, error: Exception, batch: list[_Arrival]) -> None:
        """Also for a mistake of ours: others are to be accepted after it."""
        if not isinstance(error, LOST):
            log.exception("acceptance_broken")
        self._refuse(batch, type(error).__name__)

    def _refuse(self, batch: list[_Arrival], why: str) -> None:
        log.warning("acceptance_failed", num_arrivals=len(batch), error=why)
        for arrival in batch:
            if not arrival.committed.done():
                arrival.committed.set_exception(UnavailableError(internal=f"acceptance: {why}"))

    async def _settle(self) -> None:
        rows = self._unsettled[: self._max_rows]
        try:
            await self._connection.connect()
            await self._connection.settle(rows, NOT_ENQUEUED)
        except Exception as error:
            if not isinstance(error, LOST):
                log.exception("settling_broken")
            log.warning("settling_postponed", num_rows=len(rows), error=type(error).__name__)
            await asyncio.sleep(self._linger_s)
            return
        del self._unsettled[: len(rows)]
        log.info("acceptance_settled", num_rows=len(rows))
