"""The SQL of lines that are accepted again, after whoever ran them before could not finish.

Knows nothing of batches. Invariant: a sequence has one row among the accepted requests, however
often it is begun: so it has one on the bill.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import ledger_scope, tenant_scope
from app.requests.acceptance_repository import NewRequest
from app.tables import AcceptedRequest

# What may be another process's or another version's the next time; the rest stays as it was.
_CHANGED = ("api_id", "key_id", "adapter_version_id", "adapter_digest", "adapter_id", "state")


async def find_accepted(
    session: AsyncSession, tenant_id: str, request_ids: Collection[str]
) -> dict[str, datetime]:
    """When these were accepted, of those that were. Enters the tenant's scope."""
    await tenant_scope(session, tenant_id)
    rows = await session.execute(
        select(AcceptedRequest.request_id, AcceptedRequest.accepted_at).where(
            AcceptedRequest.tenant_id == tenant_id, AcceptedRequest.request_id.in_(request_ids)
        )
    )
    return {row.request_id: row.accepted_at for row in rows}


async def accept_again(session: AsyncSession, requests: Sequence[NewRequest]) -> None:
    """These are accepted, as of `accepted_at`, whether they were before or not.

    Enters the ledger's scope; the caller commits.
    """
    await ledger_scope(session)
    rows = [
        asdict(each)
        | {"decision": json.loads(each.decision) if each.decision else None, "state": "accepted"}
        for each in requests
    ]
    statement = insert(AcceptedRequest).values(rows)
    await session.execute(
        statement.on_conflict_do_update(
            index_elements=["request_id", "tenant_id", "accepted_at"],
            set_={name: statement.excluded[name] for name in _CHANGED},
        )
    )
