"""How requests for a weighted alias went, kept in Redis for a while: what gates look at.

Knows nothing of gates. Invariants: never a text and nobody's name, only counts and times; a list
has at most `MAX_SAMPLES` of them and ends by itself; what cannot be written is left out, and no
request waits for it.
"""

from __future__ import annotations

from typing import cast

import msgspec
import structlog

from app.rollouts.gates import Sample
from engine.transport import keys
from engine.transport.connection import open_async_redis, translated_errors

log = structlog.get_logger()

MAX_SAMPLES = 20_000
TTL_S = 7 * 86_400
MAX_CONNECTIONS = 4

_decoder = msgspec.msgpack.Decoder(Sample)


class SampleBook:
    """All methods raise QueueUnavailableError where Redis does not answer."""

    def __init__(self, redis_url: str) -> None:
        self._redis = open_async_redis(redis_url, max_connections=MAX_CONNECTIONS)

    async def close(self) -> None:
        await self._redis.aclose()

    async def record(self, adapter_id: str, alias: str, sample: Sample) -> None:
        name = keys.samples(adapter_id, alias)
        with translated_errors():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.rpush(name, msgspec.msgpack.encode(sample))
                pipe.ltrim(name, -MAX_SAMPLES, -1)
                pipe.pexpire(name, TTL_S * 1000)
                await pipe.execute()

    async def read(self, adapter_id: str, alias: str) -> list[Sample]:
        """The oldest first."""
        with translated_errors():
            found = await self._redis.lrange(keys.samples(adapter_id, alias), 0, -1)
        samples = []
        for data in cast("list[bytes]", found):
            try:
                samples.append(_decoder.decode(data))
            except msgspec.MsgspecError as error:
                log.error("sample_dropped", error=str(error))
        return samples
