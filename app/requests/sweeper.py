"""Ends the requests of API processes that died: once, as `api_lost`.

Knows nothing of how a process says that it lives. Invariants: a process is dead only by
`ApiWatch`'s rules, so that a Redis that was away or lost its data ends no live request; what the
stream still holds is written first; ending again changes nothing. A request leaves the queue before
it ends in the ledger, where a sweep finds it until then: so a sweep may fail anywhere.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any, cast

import structlog
from redis.asyncio import Redis

from app.admission.messages import Settlement
from app.admission.settlement import Settler
from app.db import Database, ledger_scope
from app.requests.ledger import Entry
from app.requests.repository import LedgerRepository
from app.requests.service import write_records
from app.tables import AcceptedRequest
from engine.messages import API_LOST, UsageAuthor, UsageRecord
from engine.transport import keys
from engine.transport.connection import translated_errors
from engine.transport.errors import QueueUnavailableError
from engine.transport.liveness import ApiWatch
from engine.transport.scripts import read_script

log = structlog.get_logger()

STEADY_S = 10.0  # after Redis lost its data or was away: every live process has spoken by then
BATCH = 500


class Sweeper:
    """One per worker process; several do no harm."""

    def __init__(
        self,
        database: Database,
        redis: Redis,
        *,
        api_lost_after_s: float,
        steady_s: float = STEADY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._redis = redis
        self._settler = Settler(database, redis)
        self._watch = ApiWatch(dead_after_s=api_lost_after_s, steady_s=steady_s, clock=clock)
        self._abort = cast(
            "Callable[..., Awaitable[Any]]", redis.register_script(read_script("abort"))
        )
        self._untold = Settlement()

    async def sweep(self) -> int:
        """Look once, and end what is lost; how many requests that were.

        Raises UnavailableError and QueueUnavailableError.
        """
        await self._tell()  # what a sweep that failed did not
        dead = await self._find_dead()
        if not dead:
            return 0
        lost = await self._end(await self._take_back(dead))
        await self._tell()
        for api_id, number in Counter(request.api_id for request in lost).items():
            log.warning("requests_lost_with_api", api_id=api_id, num_requests=number)
        return len(lost)

    async def _find_dead(self) -> Collection[str]:
        async with self._database.session() as session:
            await ledger_scope(session)
            api_ids = await LedgerRepository(session).list_open_apis()
        try:
            with translated_errors():
                # Where all API processes are dead there is nobody else to give the data a name.
                await self._redis.set(keys.GENERATION, secrets.token_hex(8), nx=True)
                found = await self._redis.mget(keys.GENERATION, *map(keys.api, api_ids))
        except QueueUnavailableError:
            self._watch.forget()
            raise
        generation, *beats = cast("list[bytes | None]", found)
        is_present = {api_id: beat is not None for api_id, beat in zip(api_ids, beats, strict=True)}
        return self._watch.look(generation, is_present)

    async def _take_back(self, api_ids: Collection[str]) -> list[AcceptedRequest]:
        """They may still wait in the queue, or an engine work for nobody."""
        async with self._database.session() as session:
            await ledger_scope(session)
            found = await LedgerRepository(session).list_open(api_ids, BATCH)
        for request in found:
            with translated_errors():
                await self._abort(args=(request.request_id, "0", "", ""))
        return found

    async def _tell(self) -> None:
        """Admission, of what is in the ledger."""
        await self._settler.apply(self._untold)
        self._untold = Settlement()

    async def _end(self, requests: Collection[AcceptedRequest]) -> list[AcceptedRequest]:
        """Those of them that nobody else has ended, or accepted again, meanwhile."""
        async with self._database.session() as session:
            ledger = LedgerRepository(session)
            await ledger.open()
            owners = await ledger.find_owners([each.request_id for each in requests])
            lost = [each for each in requests if owners.get(each.request_id) == each.api_id]
            held = await ledger.find_checkpoints([request.request_id for request in lost])
            checkpoints = {(entry.tenant_id, entry.request_id): entry for entry in held}
            settlement = await write_records(
                ledger,
                [
                    _lost(request, checkpoints.get((request.tenant_id, request.request_id)))
                    for request in lost
                ],
            )
            await session.commit()
        self._untold = settlement
        return lost


def _lost(request: AcceptedRequest, checkpoint: Entry | None) -> UsageRecord:
    """The last that is known of it."""
    return UsageRecord(
        author=UsageAuthor.SWEEPER,
        request_id=request.request_id,
        tenant_id=request.tenant_id,
        epoch=0 if checkpoint is None else checkpoint.epoch,
        num_prompt_tokens=request.num_prompt_tokens,
        num_generated_tokens=0 if checkpoint is None else checkpoint.num_generated_tokens,
        num_cached_tokens=0 if checkpoint is None else checkpoint.num_cached_tokens,
        num_reasoning_tokens=0 if checkpoint is None else checkpoint.num_reasoning_tokens,
        adapter_digest=request.adapter_digest,
        finish_reason=API_LOST,
        engine_id=None if checkpoint is None else checkpoint.engine_id,
        queue_ms=None if checkpoint is None else checkpoint.queue_ms,
        adapter_load_ms=None if checkpoint is None else checkpoint.adapter_load_ms,
    )
