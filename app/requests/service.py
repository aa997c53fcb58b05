"""Writes what was said about requests into the ledger, and reads it back for operators.

Knows nothing of where records come from. Invariant: writing the same records again, in whatever
order, changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from app.admission.messages import Settlement
from app.admission.settlement import charge, ends_of
from app.errors import NotFoundError
from app.requests.ledger import entry_of, merge, merge_all
from app.requests.repository import LedgerRepository, find_request, list_events
from app.tables import AcceptedRequest, RequestEvent
from engine.messages import UsageRecord

_REQUEST_ID = re.compile(r"[0-9a-f]{32}-[0-9]{1,6}")


async def write_records(ledger: LedgerRepository, records: Iterable[UsageRecord]) -> Settlement:
    """Merge the records into the ledger, in the transaction that `ledger.open` began.

    What it returns is for admission, once the transaction is committed.
    """
    entries = merge_all(map(entry_of, records))
    held = {entry.key: entry for entry in await ledger.find(entries)}
    merged = {
        key: merge(held[key], entry) if key in held else entry for key, entry in entries.items()
    }
    changed = [entry for key, entry in merged.items() if entry != held.get(key)]
    if changed:
        await ledger.put(changed)
    return await charge(ledger.spend, ends_of(held.values()), ends_of(merged.values()))


async def show_request(
    session: AsyncSession, request_id: str
) -> tuple[AcceptedRequest, Sequence[RequestEvent]]:
    """A request as it was accepted, and its rows of the ledger. Raises NotFoundError."""
    request = None
    if _REQUEST_ID.fullmatch(request_id):
        request = await find_request(session, request_id)
    if request is None:
        raise NotFoundError("No such request.", param="request_id")
    return request, await list_events(session, request.tenant_id, request_id)
