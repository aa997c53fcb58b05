"""A ledger with requests in it, written as the worker writes them. Knows nothing of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import text

from app.db import Database
from app.requests.acceptance_repository import AcceptanceConnection, NewRequest
from app.requests.repository import LedgerRepository
from app.requests.service import write_records
from engine.messages import UsageRecord
from tests.builders.usage import make_record


class Ledger:
    """`owner` sees and changes everything, as no process may."""

    def __init__(self, database: Database, owner: Database, app_url: str) -> None:
        self.database = database
        self._owner = owner
        self._acceptance = AcceptanceConnection(app_url)

    async def accept(self, *requests: NewRequest) -> None:
        await self._acceptance.connect()
        await self._acceptance.insert(requests)

    async def settle(self, *requests: NewRequest) -> None:
        await self._acceptance.connect()
        await self._acceptance.settle(requests, "not_enqueued")

    async def write(self, *records: UsageRecord) -> None:
        async with self.database.session() as session:
            ledger = LedgerRepository(session)
            await ledger.open()
            await write_records(ledger, records)
            await session.commit()

    async def serve(self, request: NewRequest, generated: int = 10, **fields: Any) -> None:
        """Accepted, and at its end."""
        await self.accept(request)
        record = make_record(request.request_id, generated=generated, tenant_id=request.tenant_id)
        counts = {"num_prompt_tokens": request.num_prompt_tokens, **fields}
        await self.write(msgspec.structs.replace(record, **counts))

    async def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """As the owner; what it changes is committed."""
        async with self._owner.session() as session:
            result = await session.execute(text(query), values)
            rows = [dict(row) for row in result.mappings()] if result.returns_rows else []
            await session.commit()
        return rows

    async def finals(self) -> list[dict[str, Any]]:
        return await self.rows(
            "SELECT * FROM request_events WHERE event = 'final' ORDER BY request_id"
        )

    def close(self) -> None:
        self._acceptance.terminate()


def total(rows: Sequence[dict[str, Any]], name: str) -> int:
    return sum(row[name] for row in rows)
