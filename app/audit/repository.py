"""The SQL of the audit log.

Knows nothing of MACs. Invariants: whoever appends to a chain holds its head until the transaction
ends, so that a chain never forks; every query names the chain, which is a tenant's id or the
fleet's, and the session is in its scope, but for `list_heads`, which is the operator's.
"""

from __future__ import annotations

from dataclasses import fields

import asyncpg
from sqlalchemy import func, literal, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.audit.chain import START, Head, Link
from app.audit.tables import AuditEvent, AuditHead
from app.db import registry_unavailable
from app.pages import PageQuery

_LINKS = """
SELECT tenant_id, seq, id, recorded_at, actor, request_id, action, target, before, after, mac
FROM audit_events
WHERE tenant_id = $1 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT $4
"""
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
_HEAD = [getattr(AuditHead, field.name) for field in fields(Head)]


class AuditRepository:
    """One chain."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def lock_head(self) -> Head:
        """The chain's head, ours until the transaction ends; that of an empty chain has seq 0."""
        await self._session.execute(
            insert(AuditHead)
            .values(tenant_id=self._tenant_id, seq=0, mac=START, seal="")
            .on_conflict_do_nothing()
        )
        rows = await self._session.execute(
            select(*_HEAD).where(AuditHead.tenant_id == self._tenant_id).with_for_update()
        )
        return Head(*rows.one())

    async def append(self, link: Link, head: Head) -> None:
        """Add an event, and the head that it makes."""
        self._session.add(AuditEvent(**link._asdict()))
        await self._session.flush()
        await self._session.execute(
            update(AuditHead)
            .where(AuditHead.tenant_id == self._tenant_id)
            .values(seq=head.seq, mac=head.mac, seal=head.seal)
        )

    async def get_end(self) -> tuple[Head | None, int]:
        """The head and the last event's seq, as they were at one and the same moment."""
        last = (
            select(func.coalesce(func.max(AuditEvent.seq), 0))
            .where(AuditEvent.tenant_id == self._tenant_id)
            .scalar_subquery()
        )
        one = select(literal(1).label("one")).subquery()
        rows = await self._session.execute(
            select(last, *_HEAD).select_from(
                one.outerjoin(AuditHead, AuditHead.tenant_id == self._tenant_id)
            )
        )
        seq, *head = rows.one()
        return (None if head[0] is None else Head(*head)), seq

    async def list_links(self, after_seq: int, last_seq: int, limit: int) -> list[Link]:
        """Events in order of the chain, none after `last_seq`.

        Asked of the driver itself, in the session's transaction: twice as many a second. Raises
        UnavailableError.
        """
        connection = await (await self._session.connection()).get_raw_connection()
        driver = connection.driver_connection
        assert driver is not None
        try:
            rows = await driver.fetch(_LINKS, self._tenant_id, after_seq, last_seq, limit)
        except _LOST as error:
            raise registry_unavailable(error) from error  # SQLAlchemy did not see it
        return [Link(*row) for row in rows]

    async def list_page(self, page: PageQuery) -> list[AuditEvent]:
        """In the order of the chain, which that of ids is not: hosts' clocks differ."""
        events = select(AuditEvent).where(AuditEvent.tenant_id == self._tenant_id)
        last = events.where(AuditEvent.id == page.after)
        seq = last.with_only_columns(AuditEvent.seq).correlate(None).scalar_subquery()
        query = page.narrow(events, AuditEvent.seq, after=seq)
        return list(await self._session.scalars(query))


async def list_heads(session: AsyncSession, page: PageQuery) -> list[Head]:
    """The heads of all chains, by their tenants' ids. In the operator's scope."""
    rows = await session.execute(page.narrow(select(*_HEAD), AuditHead.tenant_id))
    return [Head(*row) for row in rows]
