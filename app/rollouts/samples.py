"""What rollouts keep in Redis for a while: how requests for a weighted alias went, which gates look
at, and how many golden prompts a tenant had asked.

Knows nothing of gates or quotas. Invariants: never a text and no user's name, only counts and
times; a list has at most `MAX_SAMPLES` of them and ends by itself; what cannot be written is left
out, and no request waits for it.
"""

from __future__ import annotations

import asyncio
from datetime import date
from typing import TypeVar, cast

import msgspec
import structlog

from app.rollouts.gates import Sample
from app.rollouts.shadows import ShadowSample
from engine.transport import keys
from engine.transport.connection import open_async_redis, translated_errors

log = structlog.get_logger()

MAX_SAMPLES = 20_000
TTL_S = 7 * 86_400
DAY_S = 86_400
MAX_CONNECTIONS = 4

_decoder = msgspec.msgpack.Decoder(Sample)
_shadow_decoder = msgspec.msgpack.Decoder(ShadowSample)

T = TypeVar("T")


class SampleBook:
    """All methods raise QueueUnavailableError where Redis does not answer."""

    def __init__(self, redis_url: str) -> None:
        self._redis = open_async_redis(redis_url, max_connections=MAX_CONNECTIONS)

    async def close(self) -> None:
        await self._redis.aclose()

    async def record(self, adapter_id: str, alias: str, sample: Sample) -> None:
        await self._append(keys.samples(adapter_id, alias), msgspec.msgpack.encode(sample))

    async def record_shadow(self, adapter_id: str, alias: str, sample: ShadowSample) -> None:
        await self._append(keys.shadows(adapter_id, alias), msgspec.msgpack.encode(sample))

    async def read(self, adapter_id: str, alias: str) -> list[Sample]:
        """The oldest first."""
        found = await self._all(keys.samples(adapter_id, alias))
        return await asyncio.to_thread(_decoded, _decoder, found)

    async def read_shadows(self, adapter_id: str, alias: str) -> list[ShadowSample]:
        """The oldest first."""
        found = await self._all(keys.shadows(adapter_id, alias))
        return await asyncio.to_thread(_decoded, _shadow_decoder, found)

    async def count_golden(self, tenant_id: str, day: date, num_prompts: int) -> int:
        """How many it were on that day (UTC), these included; a negative number takes some back."""
        name = keys.golden(tenant_id, day.isoformat())
        with translated_errors():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.incrby(name, num_prompts)
                pipe.expire(name, 2 * DAY_S)
                counted, _ = await pipe.execute()
        return int(counted)

    async def _append(self, name: str, data: bytes) -> None:
        with translated_errors():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.rpush(name, data)
                pipe.ltrim(name, -MAX_SAMPLES, -1)
                pipe.pexpire(name, TTL_S * 1000)
                await pipe.execute()

    async def _all(self, name: str) -> list[bytes]:
        with translated_errors():
            return cast("list[bytes]", await self._redis.lrange(name, 0, -1))


def _decoded(decoder: msgspec.msgpack.Decoder[T], found: list[bytes]) -> list[T]:
    samples = []
    for data in found:
        try:
            samples.append(decoder.decode(data))
        except msgspec.MsgspecError as error:
            log.error("sample_dropped", error=str(error))
    return samples
