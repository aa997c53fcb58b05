"""What an API process itself says of its requests: those that it ended, for the ledger.

Knows nothing of streams. Invariant: what was added is in Redis, or will be as soon as Redis takes
it; after Redis lost its data, what was said lately is said again (the ledger takes it once).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from redis.asyncio import Redis

from engine.messages import TRIAL_TENANT, EngineRequest, UsageAuthor, UsageRecord
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.connection import translated_errors
from engine.transport.output_stream import OutputStream

REMEMBERED_S = 60.0  # how far behind a worker may be when Redis loses its data
MAX_REMEMBERED = 20_000
MAX_SENT_AT_ONCE = 500


class UsageReporter:
    """`add` what ended here, `remember` what an engine ended; `send` again and again."""

    def __init__(self, redis: Redis, codec: Codec, clock: Callable[[], float]) -> None:
        self._redis = redis
        self._codec = codec
        self._clock = clock
        self._unsent: deque[UsageRecord] = deque()  # at most one a request in flight
        self._remembered: deque[tuple[float, UsageRecord]] = deque(maxlen=MAX_REMEMBERED)
        self._has_unsent = asyncio.Event()

    @property
    def num_unsent(self) -> int:
        return len(self._unsent)

    def add(self, record: UsageRecord) -> None:
        if record.tenant_id == TRIAL_TENANT:
            return
        self._unsent.append(record)
        self._has_unsent.set()
        self.remember(record)

    def remember(self, record: UsageRecord) -> None:
        if record.tenant_id == TRIAL_TENANT:
            return
        now = self._clock()
        self._remembered.append((now, record))
        while now - self._remembered[0][0] > REMEMBERED_S:
            self._remembered.popleft()

    def repeat(self) -> None:
        """Redis lost its data, and with it what no worker had read yet."""
        self._unsent.extend(record for _, record in self._remembered)
        self._has_unsent.set()

    async def send(self) -> None:
        """Wait until there is something to say, and say it. Raises QueueUnavailableError."""
        if not self._unsent:
            self._has_unsent.clear()
            await self._has_unsent.wait()
        num = min(len(self._unsent), MAX_SENT_AT_ONCE)
        with translated_errors():
            async with self._redis.pipeline(transaction=True) as pipe:
                for i in range(num):
                    pipe.xadd(keys.USAGE, {"record": self._codec.encode(self._unsent[i])})
                await pipe.execute()
        for _ in range(num):
            self._unsent.popleft()


def record_of_stream(stream: OutputStream, reason: str) -> UsageRecord:
    """How a stream ended, with the tokens that came through it."""
    return _record(
        stream.request,
        reason,
        epoch=stream.epoch,
        engine_id=stream.engine_id,
        num_generated_tokens=stream.num_tokens,
        num_cached_tokens=stream.num_cached_tokens,
        num_reasoning_tokens=stream.num_reasoning_tokens,
    )


def record_of_unsubmitted(request: EngineRequest, reason: str) -> UsageRecord:
    """The end of a request that no engine has seen."""
    return _record(
        request,
        reason,
        epoch=request.epoch,
        num_generated_tokens=len(request.delivered_token_ids),
        num_reasoning_tokens=request.num_reasoning_tokens,
    )


def _record(
    request: EngineRequest,
    reason: str,
    *,
    epoch: int,
    num_generated_tokens: int,
    num_cached_tokens: int = 0,
    num_reasoning_tokens: int = 0,
    engine_id: str | None = None,
) -> UsageRecord:
    return UsageRecord(
        author=UsageAuthor.API,
        request_id=request.request_id,
        tenant_id=request.tenant_id,
        epoch=epoch,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_generated_tokens=num_generated_tokens,
        num_cached_tokens=num_cached_tokens,
        num_reasoning_tokens=num_reasoning_tokens,
        adapter_digest=None if request.adapter is None else request.adapter.digest,
        finish_reason=reason,
        engine_id=engine_id,
    )
