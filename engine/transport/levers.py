"""Operators' end of the levers: tell engines what to do with an adapter, and hear what they say.

Async, for API and worker processes. Knows nothing of SQL or HTTP. Invariants: only what an engine
itself said, under the installation's secret, is an answer; an engine that died meanwhile is not
waited for, since it holds nothing any more.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import structlog

from engine.messages import AdapterAck, AdapterCommand, AdapterRef, AdapterReport, Lever
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.connection import open_async_redis, translated_errors
from engine.transport.errors import MessageDecodeError
from engine.transport.lever_reports import ANSWER_TTL_S

log = structlog.get_logger(__name__)

CONTROL_TTL_S = 60.0
POLL_S = 0.05
MAX_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Order:
    """A command as it was given, and to whom."""

    command_id: str
    engine_ids: tuple[str, ...]


class EngineLevers:
    """All methods raise QueueUnavailableError where Redis does not answer."""

    def __init__(self, redis_url: str, *, secret: str) -> None:
        """secret: of `Codec`."""
        self._redis = open_async_redis(redis_url, max_connections=MAX_CONNECTIONS)
        self._codec = Codec(secret)

    async def close(self) -> None:
        await self._redis.aclose()

    async def live_engines(self) -> list[str]:
        """Ids of the engines with a fresh heartbeat, in order."""
        with translated_errors():
            known = cast("set[bytes]", await self._redis.smembers(keys.ENGINES))
            return await self._living(sorted(each.decode() for each in known))

    async def give(
        self,
        lever: Lever,
        adapter: AdapterRef,
        engine_ids: Collection[str],
        *,
        until_s: float = 0.0,
    ) -> Order:
        """Tell these engines. Each of them answers once."""
        order = Order(secrets.token_hex(16), tuple(engine_ids))
        command = AdapterCommand(
            command_id=order.command_id, lever=lever, adapter=adapter, until_s=until_s
        )
        sealed = self._codec.encode(command)
        name = keys.command(order.command_id)
        with translated_errors():
            async with self._redis.pipeline(transaction=True) as pipe:
                # There before the command is: an engine asks for it.
                pipe.hset(name, "", b"")
                pipe.pexpire(name, int(ANSWER_TTL_S * 1000))
                for engine_id in engine_ids:
                    pipe.rpush(keys.control(engine_id), sealed)
                    pipe.pexpire(keys.control(engine_id), int(CONTROL_TTL_S * 1000))
                await pipe.execute()
        return order

    async def answers(self, order: Order, timeout_s: float) -> Mapping[str, AdapterAck]:
        """What the engines said within that time, by their ids."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = await self._answers(order)
            missing = [each for each in order.engine_ids if each not in found]
            if not missing or time.monotonic() >= deadline:
                return found
            with translated_errors():
                if not await self._living(missing):
                    return found
            await asyncio.sleep(POLL_S)

    async def reports(self, tenant_id: str, digest: str) -> list[AdapterReport]:
        """How an adapter stands at every engine that lives and has anything of it."""
        engine_ids = await self.live_engines()
        with translated_errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                for engine_id in engine_ids:
                    pipe.hget(keys.residency(engine_id), f"{tenant_id}/{digest}")
                values = await pipe.execute()
        reports = []
        for engine_id, value in zip(engine_ids, values, strict=True):
            if value is None:
                continue
            try:
                report = self._codec.decode_report(value)
            except MessageDecodeError as error:
                log.error("adapter_report_dropped", engine_id=engine_id, error=str(error))
                continue
            if (report.engine_id, report.tenant_id, report.digest) == (
                engine_id,
                tenant_id,
                digest,
            ):
                reports.append(report)
        return reports

    async def _living(self, engine_ids: Sequence[str]) -> list[str]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for engine_id in engine_ids:
                pipe.exists(keys.engine(engine_id))
            lives = await pipe.execute() if engine_ids else []
        return [each for each, alive in zip(engine_ids, lives, strict=True) if alive]

    async def _answers(self, order: Order) -> dict[str, AdapterAck]:
        with translated_errors():
            said = cast(
                "dict[bytes, bytes]", await self._redis.hgetall(keys.command(order.command_id))
            )
        found = {}
        for name, value in said.items():
            engine_id = name.decode()
            if engine_id not in order.engine_ids:
                continue
            try:
                ack = self._codec.decode_ack(value)
            except MessageDecodeError as error:
                log.error("adapter_answer_dropped", engine_id=engine_id, error=str(error))
                continue
            if (ack.engine_id, ack.command_id) == (engine_id, order.command_id):
                found[engine_id] = ack
        return found
