"""Decides whether a request may run, in Redis, so that every API process sees one count.

One script looks at every limit and reserves all or nothing. Knows nothing of HTTP, nor of what
tokens are for. Invariants: time is the server's; nobody is admitted above a hard limit; what is
reserved stays so until the ledger has it (`app.admission.settlement`), or is given back because the
request was never accepted. A place in flight is a lease: it expires unless the engine that runs the
request keeps it, or while none does its API process; so what a killed process had becomes free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

import msgspec
import structlog

from app.admission.messages import (
    Ask,
    CountedLimit,
    Decision,
    Held,
    SequenceAsk,
    TenantSpend,
    Verdict,
    counted_subjects,
    encode,
    limited,
)
from app.admission.refusals import refusal_of
from app.admission.scripts import register
from app.errors import UnavailableError
from app.plans.limits import PER_MINUTE, Kind, Limit, subject_of
from engine.transport import keys
from engine.transport.connection import open_async_redis, translated_errors
from engine.transport.errors import QueueUnavailableError
from engine.transport.server import PLACE_TTL_S

log = structlog.get_logger(__name__)

LEASE_S = PLACE_TTL_S
MAX_CONNECTIONS = 16
REFRESH_CHUNK = 500
REFUSAL_TTL_S = 3600.0
MAX_REFUSALS = 1000  # of a tenant
DAY_MS = 86_400_000

LoadSpend = Callable[[str], Coroutine[Any, Any, TenantSpend]]
_verdicts = msgspec.msgpack.Decoder(Verdict)
_decisions = msgspec.msgpack.Decoder(Decision)


class SpendUnknownError(Exception):
    """Redis does not know what the tenant has spent: `Admission.load` tells it."""


class Admission:
    """`admit` before a request, `release` after it, however it ended; `close` at the end."""

    def __init__(self, redis_url: str, load_spend: LoadSpend, *, lease_s: float = LEASE_S) -> None:
        """`load_spend` reads from the registry what a tenant has spent."""
        self._lease_ms = int(lease_s * 1000)
        self._load_spend = load_spend
        self._redis = open_async_redis(redis_url, max_connections=MAX_CONNECTIONS)
        self._scripts = register(self._redis, "admit", "load", "refresh", "release")
        self._held: dict[str, Held] = {}
        self._asking: dict[str, asyncio.Task[Verdict]] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._is_closing = False

    @property
    def num_held(self) -> int:
        """How many places this process holds."""
        return len(self._held)

    def ask(
        self,
        *,
        request_id: str,
        tenant_id: str,
        key_id: str,
        counted_key_id: str,
        model: str,
        adapter_id: str | None,
        sequences: Sequence[SequenceAsk],
        limits: Sequence[Limit],
    ) -> Ask:
        """The question for `admit`."""
        tenant = subject_of("tenant", tenant_id)
        places = limited(limits, frozenset({Kind.CONCURRENCY}))
        return Ask(
            request_id=request_id,
            tenant_id=tenant_id,
            key_id=key_id,
            adapter_id=adapter_id,
            model=model,
            sequences=list(sequences),
            limits=[CountedLimit.of(each) for each in limits],
            subjects=counted_subjects(tenant_id, counted_key_id, adapter_id),
            windows=limited(limits, PER_MINUTE),
            places=[tenant, *(each for each in places if each != tenant)],
            lease_ms=self._lease_ms,
        )

    async def admit(self, ask: Ask) -> Decision:
        """Reserve all that was asked for, until `release`. Idempotent by the sequences' ids.

        Raises ApiError (429) where a limit refuses it, UnavailableError where Redis does not
        answer, SpendUnknownError where it is to be asked again after `load`.
        """
        self._keep_refreshing()
        asking = asyncio.create_task(self._decide(ask))
        self._asking[ask.request_id] = asking
        try:
            # Shielded: half a command cannot be taken back, a whole one can, by `release`.
            verdict = await asyncio.shield(asking)
        except QueueUnavailableError as error:
            raise UnavailableError(internal=str(error)) from error
        finally:
            if asking.done():
                self._asking.pop(ask.request_id, None)
        if verdict.status == "unloaded":
            raise SpendUnknownError
        decision = Decision(ask=ask, verdict=verdict)
        if verdict.status == "refused":
            raise refusal_of(decision)
        over = [limit for limit, check in decision.checked() if check.is_over]  # soft or dry-run
        if over:
            kinds = [f"{limit.scope}:{limit.kind}:{limit.mode}" for limit in over]
            log.info("limits_passed_over", tenant_id=ask.tenant_id, limits=kinds)
        for sequence in ask.sequences:
            self._held[sequence.id] = Held(
                id=sequence.id,
                places=ask.places,
                subjects=ask.subjects,
                tokens=sequence.tokens,
                cost=sequence.cost,
                day=verdict.now_ms // DAY_MS,
            )
        return decision

    async def load(self, tenant_id: str) -> None:
        """Tell Redis what a tenant has spent: once for all who wait for it, and to its end also
        where none of them does any more.

        Raises UnavailableError where the registry or Redis does not answer.
        """
        loading = self._loading.get(tenant_id)
        if loading is None:
            loading = asyncio.create_task(self._load(tenant_id), name="admission-load")
            self._loading[tenant_id] = loading
            loading.add_done_callback(partial(self._forget_loading, tenant_id))
        try:
            await asyncio.shield(loading)
        except QueueUnavailableError as error:
            raise UnavailableError(internal=str(error)) from error

    async def release(self, ask: Ask, *, is_accepted: bool) -> None:
        """Give the places back, and what was reserved for a request that was never accepted.

        Without Redis both expire or are looked after by a worker. Never raises for that.
        """
        ids = [sequence.id for sequence in ask.sequences]
        for each in ids:
            self._held.pop(each, None)
        asking = self._asking.pop(ask.request_id, None)
        if asking is not None:  # whoever asked did not wait for it: it must not come after this
            await asyncio.wait((asking,))
        given = {"ids": ids, "places": ask.places, "is_cancelled": not is_accepted}
        try:
            await self._run("release", encode(given))
        except QueueUnavailableError as error:
            log.warning("place_left_to_expire", request_id=ask.request_id, error=str(error))

    async def find_refusal(self, request_id: str) -> Decision | None:
        """Why a request was refused, if that was lately. Raises QueueUnavailableError."""
        with translated_errors():
            found = cast("bytes | None", await self._redis.get(keys.refusal(request_id)))
        return None if found is None else _decisions.decode(found)

    async def refresh(self) -> None:
        """Extend every place held here. Raises QueueUnavailableError."""
        ids = list(self._held)
        for start in range(0, len(ids), REFRESH_CHUNK):
            held = [self._held[i] for i in ids[start : start + REFRESH_CHUNK] if i in self._held]
            await self._run("refresh", encode({"lease_ms": self._lease_ms, "held": held}))
            gone = [each for each in held if each.id not in self._held]
            for each in gone:  # released meanwhile, maybe before
                given = {"ids": [each.id], "places": each.places, "is_cancelled": False}
                await self._run("release", encode(given))

    async def close(self) -> None:
        """Stop refreshing; what is still held expires."""
        self._is_closing = True  # a cancellation can be swallowed inside redis-py
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
            self._refreshing = None
        loading = list(self._loading.values())
        for each in loading:
            each.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        await self._redis.aclose()

    async def _decide(self, ask: Ask) -> Verdict:
        packed = await self._run("admit", encode(ask), int(REFUSAL_TTL_S * 1000), MAX_REFUSALS)
        return _verdicts.decode(packed)

    async def _load(self, tenant_id: str) -> None:
        # NOTE: 0 where the ledger moved on meanwhile; whoever asks then reads it again.
        await self._run("load", encode(await self._load_spend(tenant_id)))

    def _forget_loading(self, tenant_id: str, _: asyncio.Task[None]) -> None:
        del self._loading[tenant_id]

    def _keep_refreshing(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_often(), name="admission-refresh")

    async def _refresh_often(self) -> None:
        while not self._is_closing:
            await asyncio.sleep(self._lease_ms / 3000)
            try:
                await self.refresh()
            except QueueUnavailableError as error:
                log.warning("places_not_refreshed", num_held=self.num_held, error=str(error))

    async def _run(self, script: str, *args: Any) -> Any:
        with translated_errors():
            return await self._scripts[script](args=args)
