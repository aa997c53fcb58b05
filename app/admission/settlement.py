"""What the ledger takes in replaces what was reserved for it: in Postgres first, then in Redis.

Knows nothing of how records are merged. Invariants: what is charged is what the bill says
(`app.usage`: the prompt with its first choice, once a token was generated; every generated token);
a request's share of `spend` changes in the transaction that changes its row of the ledger, and by
as much; what Redis is told is absolute, so that it may be told twice, and late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from app.admission.lately_repository import read_lately
from app.admission.messages import (
    Ended,
    Figures,
    OpenSequence,
    Record,
    Settlement,
    TenantSpend,
    encode,
)
from app.admission.scripts import register
from app.admission.spend_repository import (
    RequestKey,
    Reserved,
    SpendRepository,
    SubjectSpend,
    date_of,
    read_spend,
    totals,
)
from app.db import Database, ledger_scope
from app.requests.ledger import Entry
from engine.transport.connection import translated_errors

LOOK_AGAIN_S = 10.0
MAX_LOOKED_AT = 500


async def charge(
    spend: SpendRepository,
    before: Mapping[RequestKey, Entry],
    after: Mapping[RequestKey, Entry],
) -> Settlement:
    """Book what these requests' `final` rows have become; the transaction is the ledger's.

    `before` has the rows that were there. What it returns is for `Settler.apply`, after the commit.
    """
    booked, ended, subjects = [], [], set[tuple[str, str]]()
    for reserved in await spend.find_reserved(after):
        key = reserved.tenant_id, reserved.request_id
        record = msgspec.convert(reserved.decision, Record)
        tokens, cost = _charge(reserved, record, after[key])
        ended.append(Ended(id=reserved.request_id, tokens=tokens))
        was_tokens, was_cost = _charge(reserved, record, before[key]) if key in before else (0, 0)
        for subject in record.subjects:
            subjects.add((reserved.tenant_id, subject))
            if key not in before or (tokens, cost) != (was_tokens, was_cost):
                row = reserved.tenant_id, subject, date_of(record.day)
                booked.append((row, tokens - was_tokens, cost - was_cost))
    await spend.add(totals(booked))
    figures = await spend.figures(subjects)
    return Settlement(figures=[_figures(each) for each in figures], ended=ended)


async def load_spend(database: Database, tenant_id: str) -> TenantSpend:
    """All that Redis has to know of a tenant. Raises UnavailableError."""
    async with database.session() as session:
        figures, still_open = await read_spend(session, tenant_id)
        lately = await read_lately(session, tenant_id)
    return TenantSpend(
        tenant_id=tenant_id,
        version=max((each.version for each in figures), default=0),
        figures=[_figures(each) for each in figures],
        open=[_open(each) for each in still_open],
        lately=lately,
        look_ms=int(LOOK_AGAIN_S * 1000),
    )


class Settler:
    """Tells Redis what the ledger says. One per worker; several do no harm."""

    def __init__(self, database: Database, redis: Redis) -> None:
        self._database = database
        self._redis = redis
        self._scripts = register(redis, "settle", "look_after")

    async def apply(self, settlement: Settlement) -> None:
        """Raises QueueUnavailableError; then it is to be told again."""
        if settlement.ended or settlement.figures:
            await self._run("settle", encode(settlement))

    async def look_after(self) -> int:
        """Drop reservations that nobody refreshes and nobody will settle; how many there were.

        Of a request that was never accepted, because its API process died first; or of one that
        had ended when Redis was told of it once more. Raises UnavailableError too.
        """
        found = await self._run("look_after", MAX_LOOKED_AT, int(LOOK_AGAIN_S * 1000))
        ids = [each.decode() for each in cast("list[bytes]", found)]
        if not ids:
            return 0
        async with self._database.session() as session:
            await ledger_scope(session)
            still_open = await SpendRepository(session).find_open(ids)
        gone = [each for each in ids if each not in still_open]
        await self.apply(Settlement(ended=[Ended(id=each, tokens=0) for each in gone]))
        return len(gone)

    async def _run(self, script: str, *args: Any) -> Any:
        with translated_errors():
            return await self._scripts[script](args=args)


def ends_of(entries: Iterable[Entry]) -> dict[RequestKey, Entry]:
    """Of these rows, those with which a request is over."""
    return {entry.key[:2]: entry for entry in entries if entry.ends_request}


def _charge(reserved: Reserved, record: Record, entry: Entry) -> tuple[int, int]:
    """(tokens, billionths) that a request pays for."""
    pays_input = reserved.is_first_choice and entry.num_generated_tokens > 0
    num_input = entry.num_prompt_tokens if pays_input else 0
    num_output = entry.num_generated_tokens
    cost = 0
    if record.prices is not None:
        cost = record.prices.cost(
            num_input=num_input,
            num_cached=min(entry.num_cached_tokens, num_input),
            num_output=num_output,
        )
    return num_input + num_output, cost


def _figures(each: SubjectSpend) -> Figures:
    return Figures(subject=each.subject, version=each.version, amounts=each.amounts)


def _open(reserved: Reserved) -> OpenSequence:
    record = msgspec.convert(reserved.decision, Record)
    return OpenSequence(
        id=reserved.request_id,
        subjects=record.subjects,
        tokens=record.tokens,
        cost=record.cost,
        day=record.day,
    )
