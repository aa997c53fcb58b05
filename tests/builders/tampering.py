"""What somebody with the run of the database may do to an audit chain, one statement at a time.

Each is drawn from `random`, leaves the rows that it does not name as they are, and changes
something that the chain is meant to protect.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

# Triggers do not fire, foreign keys are not checked: what a superuser can have.
UNGUARDED = text("SET LOCAL session_replication_role = replica")
TEXT_COLUMNS = ("id", "actor", "request_id", "action", "target", "before", "after", "mac")


@dataclass(frozen=True, slots=True)
class Tampering:
    name: str
    statements: tuple[str, ...]
    values: dict[str, Any]

    async def apply(self, session: AsyncSession) -> None:
        await session.execute(UNGUARDED)
        for statement in self.statements:
            await session.execute(text(statement), self.values)


def draw_tampering(draw: random.Random, tenant_id: str, num_events: int) -> Tampering:
    """Of a chain with `num_events` events, of which no two neighbours are alike."""
    make = draw.choice((_edit, _edit_time, _delete, _insert, _swap, _truncate, _forge_head, _lose))
    return make(draw, tenant_id, num_events)


def _edit(draw: random.Random, tenant_id: str, num_events: int) -> Tampering:
    column = draw.choice(TEXT_COLUMNS)
    return _one(
        f"edit {column}",
        f"UPDATE audit_events SET {column} = coalesce({column}, '') || :more"
        " WHERE tenant_id = :tenant_id AND seq = :seq",
        tenant_id=tenant_id,
        seq=draw.randint(1, num_events),
        more=draw.choice([" ", "x", "0"]),
    )


def _edit_time(draw: random.Random, tenant_id: str, num_events: int) -> Tampering:
    return _one(
        "edit time",
        "UPDATE audit_events SET recorded_at = recorded_at + make_interval(secs => :seconds)"
        " WHERE tenant_id = :tenant_id AND seq = :seq",
        tenant_id=tenant_id,
        seq=draw.randint(1, num_events),
        seconds=draw.choice([-86400.0, -0.000001, 0.000001, 3600.0]),
    )


def _delete(draw: random.Random, tenant_id: str, num_events: int) -> Tampering:
    """One event, and those behind it move up, or do not."""
    seq = draw.randint(1, num_events)
    delete = "DELETE FROM audit_events WHERE tenant_id = :tenant_id AND seq = :seq"
    move_up = (
        "UPDATE audit_events SET seq = seq - 1 + 1000000"
        " WHERE tenant_id = :tenant_id AND seq > :seq",
        "UPDATE audit_events SET seq = seq - 1000000"
        " WHERE tenant_id = :tenant_id AND seq > 1000000",
    )
    statements = (delete, *move_up) if draw.random() < 0.5 else (delete,)
    return Tampering("delete", statements, {"tenant_id": tenant_id, "seq": seq})


def _insert(draw: random.Random, tenant_id: str, num_events: int) -> Tampering:
    """A copy of an event at the end, or before the beginning."""
    return _one(
        "insert",
        "INSERT INTO audit_events SELECT tenant_id, :place, 'aud_forged', recorded_at, actor,"
        " request_id, action, target, before, after, mac FROM audit_events"
        " WHERE tenant_id = :tenant_id AND seq = :seq",
        tenant_id=tenant_id,
        seq=draw.randint(1, num_events),
        place=draw.choice([0, -1, num_events + 1, num_events + 7]),
    )


def _swap(draw: random.Random, tenant_id: str, num_events: int) -> Tampering:
    """Two events change places."""
    one, other = draw.sample(range(1, num_events + 1), 2)
    move = "UPDATE audit_events SET seq = {to} WHERE tenant_id = :tenant_id AND seq = {of}"
    return Tampering(
        "swap",
        tuple(
            move.format(of=of, to=to)
            for of, to in ((":one", "1000000"), (":other", ":one"), ("1000000", ":other"))
        ),
        {"tenant_id": tenant_id, "one": one, "other": other},
    )


def _truncate(draw: random.Random, tenant_id: str, num_events: int) -> Tampering:
    """The tail goes, and the head is set back to the last event that is left, or is not."""
    seq = draw.randint(0, num_events - 1)
    cut = "DELETE FROM audit_events WHERE tenant_id = :tenant_id AND seq > :seq"
    set_back = (
        "UPDATE audit_heads h SET seq = :seq, mac = coalesce((SELECT mac FROM audit_events e"
        " WHERE e.tenant_id = h.tenant_id AND e.seq = :seq), repeat('0', 64))"
        " WHERE tenant_id = :tenant_id"
    )
    statements = (cut, set_back) if draw.random() < 0.5 else (cut,)
    return Tampering("truncate", statements, {"tenant_id": tenant_id, "seq": seq})


def _forge_head(draw: random.Random, tenant_id: str, num_events: int) -> Tampering:
    column, value = draw.choice([("seq", "seq + 1"), ("mac", "'0'"), ("seal", "mac")])
    return _one(
        f"forge head's {column}",
        f"UPDATE audit_heads SET {column} = {value} WHERE tenant_id = :tenant_id",
        tenant_id=tenant_id,
    )


def _lose(draw: random.Random, tenant_id: str, num_events: int) -> Tampering:
    """The head, or all of the events."""
    table = draw.choice(["audit_heads", "audit_events"])
    return _one(
        f"lose {table}", f"DELETE FROM {table} WHERE tenant_id = :tenant_id", tenant_id=tenant_id
    )


def _one(name: str, statement: str, **values: Any) -> Tampering:
    return Tampering(name, (statement,), values)
