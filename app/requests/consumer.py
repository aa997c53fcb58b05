"""Carries what engines and API processes say on the usage stream into the ledger.

Knows nothing of how records are merged. Invariants: an entry is acknowledged, and deleted, after
the transaction that wrote it was committed, so that a worker may die anywhere and Postgres may be
away, or take nothing, for however long; what cannot be read, or what no Postgres would take, does
not bar the way for the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import structlog
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from sqlalchemy.exc import DBAPIError

from app.admission.settlement import Settler
from app.db import Database, is_refused
from app.requests.repository import LedgerRepository
from app.requests.service import write_records
from engine.messages import UsageRecord
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.connection import translated_errors
from engine.transport.errors import MessageDecodeError

log = structlog.get_logger()

GROUP = "ledger"
BATCH = 500
BLOCK_MS = 500
CLAIM_AFTER_S = 5.0  # a consumer that holds an entry for longer is taken for dead

Delivery = tuple[bytes, UsageRecord]
Entry = tuple[bytes, dict[bytes, bytes] | None]


class _NoGroupError(Exception):
    """The stream has no consumer group: a new Redis, or one that lost its data."""


class UsageConsumer:
    """One per worker process. `run_once` raises UnavailableError and QueueUnavailableError."""

    def __init__(
        self,
        database: Database,
        redis: Redis,
        *,
        secret: str,
        claim_after_s: float = CLAIM_AFTER_S,
    ) -> None:
        self._database = database
        self._codec = Codec(secret)
        self._redis = redis
        self._settler = Settler(database, redis)
        self._name = f"worker-{secrets.token_hex(6)}"
        self._claim_after_ms = int(claim_after_s * 1000)
        self._unwritten: list[Delivery] = []
        self._has_read_all = False
        self.is_caught_up = False
        """Whether the last read left nothing unread, and all of it is written."""
        self.num_written = 0
        self.num_refused = {"unreadable": 0, "refused": 0}
        """Records that were given up, by why."""

    async def run_once(self) -> int:
        """Write what has come, waiting up to half a second for it; how many entries there were.

        What a failed call has read, the next one writes.
        """
        self.is_caught_up = self._has_read_all = False
        if not self._unwritten:
            read = await self._read()
            if read is None:
                return 0
            self._unwritten = read
        num_read = len(self._unwritten)
        if self._unwritten:
            await self._write([record for _, record in self._unwritten])
            await self._acknowledge([entry_id for entry_id, _ in self._unwritten])
            self._unwritten = []
        self.is_caught_up = self._has_read_all
        return num_read

    async def _read(self) -> list[Delivery] | None:
        """What has come; None where nothing is known of it, because the group is new."""
        try:
            with translated_errors(), _no_group_noticed():
                return await self._parse(await self._claim() or await self._read_new())
        except _NoGroupError:
            await self._make_group()
            return None

    async def _claim(self) -> list[Entry]:
        """What a dead worker read and did not write."""
        reply: Any = await self._redis.xautoclaim(
            keys.USAGE, GROUP, self._name, self._claim_after_ms, "0-0", count=BATCH
        )
        return cast("list[Entry]", reply[1])

    async def _read_new(self) -> list[Entry]:
        reply: Any = await self._redis.xreadgroup(
            GROUP, self._name, {keys.USAGE: ">"}, count=BATCH, block=BLOCK_MS
        )
        entries = cast("list[Entry]", reply[0][1]) if reply else []  # protocol 2
        self._has_read_all = len(entries) < BATCH
        return entries

    async def _parse(self, entries: Sequence[Entry]) -> list[Delivery]:
        deliveries, unreadable = [], []
        for entry_id, fields in entries:
            try:
                record = self._codec.decode_usage((fields or {}).get(b"record", b""))
                deliveries.append((entry_id, record))
            except MessageDecodeError as error:
                self.num_refused["unreadable"] += 1
                log.error("usage_record_dropped", entry_id=entry_id.decode(), error=str(error))
                unreadable.append(entry_id)
        if unreadable:
            await self._acknowledge(unreadable)
        return deliveries

    async def _write(self, records: Sequence[UsageRecord]) -> None:
        """Write all; what Postgres refuses for its values is tried alone, and given up then."""
        try:
            async with self._database.session() as session:
                ledger = LedgerRepository(session)
                await ledger.open()
                settlement = await write_records(ledger, records)
                await session.commit()
            self.num_written += len(records)
            await self._settler.apply(settlement)
        except DBAPIError as error:
            if not is_refused(error):
                raise
            if len(records) == 1:
                self.num_refused["refused"] += 1
                log.error(
                    "usage_record_refused",
                    request_id=records[0].request_id,
                    error=type(error.orig).__name__,
                )
                return
            middle = len(records) // 2
            await self._write(records[:middle])
            await self._write(records[middle:])

    async def _acknowledge(self, entry_ids: Sequence[bytes]) -> None:
        with translated_errors():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.xack(keys.USAGE, GROUP, *entry_ids)
                pipe.xdel(keys.USAGE, *entry_ids)
                await pipe.execute()

    async def _make_group(self) -> None:
        with translated_errors():
            try:
                await self._redis.xgroup_create(keys.USAGE, GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):  # another worker was first
                    raise


@contextmanager
def _no_group_noticed() -> Iterator[None]:
    try:
        yield
    except ResponseError as error:
        if str(error).startswith("NOGROUP"):
            raise _NoGroupError from error
        raise
