"""Whoever has the run of the database, but not of the secret, changes no audit log unnoticed.

Each tampering is tried alone, on a chain as the API makes it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.audit.chain import START, Link, audit_keys, head_seal, link_mac
from app.audit.service import BATCH, verify_chain
from app.audit.tables import AuditEvent, AuditHead
from app.audit.trail import AuditTrail
from app.db import Database, tenant_scope
from tests.builders.tampering import UNGUARDED, draw_tampering
from tests.fixtures.servers import TestDatabase

NUM_TAMPERINGS = 1_000 if os.environ.get("TEST_FAULTS") == "soak" else 500
SEED = 16
NUM_EVENTS = 40
LONG = 2 * BATCH + 1
TENANT = "ten_" + "0" * 26
KEYS = audit_keys("pepper-of-the-tests")
KEY = KEYS[0]


@dataclass(slots=True)
class Ticking:
    """Times that differ by microseconds."""

    now: int = 1_800_000_000_000_000

    def tick(self) -> datetime:
        self.now += 1
        return datetime.fromtimestamp(self.now / 1e6, UTC)


@pytest.fixture
async def owner(database: TestDatabase) -> AsyncIterator[Database]:
    owner = Database(database.owner_url, pool_size=1)
    yield owner
    await owner.close()


async def write_chain(session: AsyncSession, length: int) -> None:
    clock = Ticking()
    await tenant_scope(session, TENANT)
    for number in range(length):
        trail = AuditTrail(KEY, "operator", f"req_{number}", clock.tick())
        after = {"name": f"key {number}", "scopes": ["inference"]}
        before = None if number % 2 else {"name": "old"}
        await trail.record(
            session, TENANT, "key.created", f"key_{number}", before=before, after=after
        )
    await session.commit()


async def write_long_chain(session: AsyncSession, length: int) -> None:
    """The same rows, without a round trip for each."""
    clock, mac, rows = Ticking(), START, []
    for seq in range(1, length + 1):
        fields = ("operator", f"req_{seq}", "key.created", f"key_{seq}", None, '{"name":"key"}')
        link = Link(TENANT, seq, f"aud_{seq}", clock.tick(), *fields, "")
        mac = link_mac(KEY, mac, link)
        rows.append(link._asdict() | {"mac": mac})
    await session.execute(insert(AuditEvent), rows)
    head = {"tenant_id": TENANT, "seq": length, "mac": mac}
    seal = head_seal(KEY, TENANT, length, mac)
    await session.execute(insert(AuditHead), [head | {"seal": seal}])
    await session.commit()


async def findings(session: AsyncSession) -> list[str]:
    return (await verify_chain(session, KEYS, TENANT)).findings


async def test_every_tampering_is_found(
    owner: Database, record_property: Callable[[str, object], None]
) -> None:
    draw = random.Random(SEED)
    missed: list[str] = []
    kinds: Counter[str] = Counter()
    async with owner.session() as session:
        await write_chain(session, NUM_EVENTS)
        assert await findings(session) == []
        for _ in range(NUM_TAMPERINGS):
            tampering = draw_tampering(draw, TENANT, NUM_EVENTS)
            kinds[tampering.name] += 1
            await tampering.apply(session)
            if not await findings(session):
                missed.append(str(tampering))
            await session.rollback()
        assert await findings(session) == []
    record_property("tamperings", NUM_TAMPERINGS)
    record_property("tamperings missed", len(missed))
    assert missed == []
    assert len(kinds) >= 15, kinds


async def test_a_long_chain_is_followed_to_its_end(owner: Database) -> None:
    """In parts: what is wrong in any of them is found, and named."""
    async with owner.session() as session:
        await write_long_chain(session, LONG)
        assert await findings(session) == []
        for seq in (BATCH, BATCH + 1, LONG):
            await session.execute(UNGUARDED)
            await session.execute(
                update(AuditEvent).where(AuditEvent.seq == seq).values(actor="somebody else")
            )
            told = f"event {seq} is not what was recorded, or not in its place"
            assert await findings(session) == [told]
            await session.rollback()
