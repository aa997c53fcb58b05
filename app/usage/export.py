"""Sends what was used to the operator's own system, as batches of CloudEvents over HTTP.

Knows nothing of the ledger's rules. Invariants: an event is done when the receiver said 2xx, and is
tried for ever until then, later each time; one that a receiver refuses does not bar the way for
the rest. So a receiver gets everything at least once, and knows repeated ones by their ids.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import httpx
import structlog

from app.db import Database
from app.settings import WorkerSettings
from app.usage.cloud_events import BATCH_TYPE, cloud_event, event_data
from app.usage.outbox_repository import Claimed, OutboxRepository

log = structlog.get_logger()

BATCH = 100
TIMEOUT_S = 10.0
CLAIM_S = 60.0  # longer than any answer may take
MAX_WAIT_S = 300.0
# Refusals of what was sent, rather than of its time: the batch may hold one event at fault.
_AT_FAULT = frozenset(range(400, 500)) - {401, 403, 404, 405, 407, 408, 425, 429}

Sent = tuple[Claimed, dict[str, Any]]


class UsageExporter:
    """One per worker process; several share the work. Without a URL there is nothing to do."""

    def __init__(
        self,
        database: Database,
        settings: WorkerSettings,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._database = database
        self._url = None if settings.usage_export_url is None else str(settings.usage_export_url)
        self._rng = rng or random.Random()
        headers = {"content-type": BATCH_TYPE}
        if settings.usage_export_token is not None:
            token = settings.usage_export_token.get_secret_value()
            headers["authorization"] = f"Bearer {token}"
        # The URL is the operator's, and leads nowhere else.
        self._http = httpx.AsyncClient(
            headers=headers, timeout=TIMEOUT_S, follow_redirects=False, transport=transport
        )

    async def run_once(self) -> int:
        """Deliver what is due, up to a batch; how many events that were, taken or not.

        Raises UnavailableError without registry.
        """
        if self._url is None:
            return 0
        async with self._database.session() as session:
            due = await OutboxRepository(session).claim(BATCH, CLAIM_S)
            await session.commit()
        if due:
            await self._deliver([(claimed, event_data(claimed)) for claimed in due])
        return len(due)

    async def close(self) -> None:
        await self._http.aclose()

    async def _deliver(self, events: Sequence[Sent]) -> None:
        status = await self._post(events)
        if 200 <= status < 300:
            async with self._database.session() as session:
                await OutboxRepository(session).delivered(events)
                await session.commit()
        elif status in _AT_FAULT and len(events) > 1:
            middle = len(events) // 2
            await self._deliver(events[:middle])
            await self._deliver(events[middle:])
        else:
            await self._postpone([claimed for claimed, _ in events], status)

    async def _post(self, events: Sequence[Sent]) -> int:
        """The receiver's status; 0 where there is none. What else it says is not read."""
        assert self._url is not None
        batch = [cloud_event(claimed, data) for claimed, data in events]
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._http.stream("POST", self._url, json=batch) as answer,
            ):
                return answer.status_code
        except (httpx.HTTPError, TimeoutError) as error:
            log.warning("usage_export_unreachable", error=type(error).__name__)
            return 0

    async def _postpone(self, events: Sequence[Claimed], status: int) -> None:
        log.warning("usage_export_postponed", num_events=len(events), status=status)
        async with self._database.session() as session:
            late = [(claimed, self._wait_s(claimed.attempts)) for claimed in events]
            await OutboxRepository(session).postpone(late)
            await session.commit()

    def _wait_s(self, num_attempts: int) -> float:
        return min(2.0 ** min(num_attempts, 16), MAX_WAIT_S) * self._rng.uniform(0.5, 1.0)
