"""What an API process itself says of its requests: those that it ended, for the ledger.

Knows nothing of streams. Invariant: what was added is in Redis, or will be as soon as Redis takes
it; after Redis lost its data, what may not have been taken in is said again (the ledger takes it
once): what is older than `REMEMBERED_S` only where nothing waited to be taken in since, and at most
`MAX_REMEMBERED` records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

import structlog
from redis.asyncio import Redis

from engine.messages import TRIAL_TENANT, EngineRequest, UsageAuthor, UsageRecord
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.connection import translated_errors
from engine.transport.output_stream import OutputStream

log = structlog.get_logger(__name__)

REMEMBERED_S = 60.0
MAX_REMEMBERED = 20_000
SURE_S = 5.0
"""Until nothing waits because all was taken in, and not because Redis lost it a moment ago."""
MAX_SENT_AT_ONCE = 500


class UsageReporter:
    """`add` what ended here, `remember` what an engine ended; `send` again and again."""

    def __init__(
        self,
        redis: Redis,
        codec: Codec,
        clock: Callable[[], float],
        *,
        num_waiting: Callable[[], int],
    ) -> None:
        """num_waiting: how many records, of all processes, no worker had taken in a moment ago."""
        self._num_waiting = num_waiting
        self._none_waited_at: float | None = None
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
        if self._none_waited_at is None:
            self._none_waited_at = now if self._num_waiting() == 0 else None
        elif now - self._none_waited_at > SURE_S:
            self._forget_before(min(self._none_waited_at, now - REMEMBERED_S))
            self._none_waited_at = None

    def _forget_before(self, taken_in_at: float) -> None:
        while self._remembered[0][0] < taken_in_at:
            self._remembered.popleft()

    def repeat(self) -> None:
        """Redis lost its data, and with it what no worker had read yet."""
        self._none_waited_at = None
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
                for data in self._encoded(num):
                    pipe.xadd(keys.USAGE, {"record": data})
                await pipe.execute()
        for _ in range(num):
            self._unsent.popleft()

    def _encoded(self, num: int) -> Iterator[bytes]:
        """The first `num` records; without one that can never be sent, and would hold up all."""
        for record in islice(self._unsent, num):
            try:
                yield self._codec.encode(record)
            except Exception:  # whatever it is, it is this record alone
                log.exception("usage_record_dropped", request_id=record.request_id)


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
