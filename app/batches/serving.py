"""What a worker needs to run lines as an API process runs requests: the same context, of its own.

Knows nothing of batches' rules. Invariant: to queue and ledger a worker is one more process that
owns requests, under a name that no other life of any process has; nobody reads along what it asks
for, which yields to others all the time, however often it is begun.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from app.batches.acceptance import LineAcceptance
from app.batches.line_runner import QUEUE_TIMEOUT_S, TakeBack
from app.context import AppContext, Clock, open_context
from app.errors import UnavailableError
from app.metrics.answers import AnswerMetrics
from app.settings import Settings, WorkerSettings
from engine.transport.connection import open_async_redis, translated_errors
from engine.transport.errors import QueueUnavailableError
from engine.transport.scripts import read_script

PATIENCE_S = 5.0
POOL_SIZE = 10


@dataclass(frozen=True, slots=True)
class Serving:
    """`take_back` aborts a sequence wherever it is. Raises UnavailableError."""

    context: AppContext
    acceptance: LineAcceptance
    take_back: TakeBack


@asynccontextmanager
async def open_serving(
    settings: WorkerSettings, now: Clock, answers: AnswerMetrics | None = None
) -> AsyncIterator[Serving]:
    """Connect to everything that a request needs; `answers` counts what comes of it."""
    async with open_context(_as_api(settings), now, keeps_tier=True) as context:
        acceptance = LineAcceptance(context.database, settings.database_url, timeout_s=PATIENCE_S)
        redis = open_async_redis(settings.redis_url, max_connections=4)
        abort = cast("Callable[..., Awaitable[Any]]", redis.register_script(read_script("abort")))

        async def take_back(request_id: str) -> None:
            try:
                with translated_errors():
                    await abort(args=(request_id, "0", "", ""))
            except QueueUnavailableError as error:
                raise UnavailableError(internal=str(error)) from error

        await acceptance.start()
        try:
            own = replace(context, acceptance=acceptance, answers=answers or context.answers)
            yield Serving(own, acceptance, take_back)
        finally:
            await acceptance.close()
            await redis.aclose()


def _as_api(settings: WorkerSettings) -> Settings:
    """The worker's own, and for the rest an API process's, from the environment or by default."""
    known = {name: getattr(settings, name) for name in WorkerSettings.model_fields}
    own = {
        "api_id": f"batches-{secrets.token_hex(6)}",
        "dependency_timeout_s": PATIENCE_S,
        "failover_timeout_s": QUEUE_TIMEOUT_S,  # or it would yield no more
        "database_pool_size": POOL_SIZE,
    }
    return Settings(**(known | own))
