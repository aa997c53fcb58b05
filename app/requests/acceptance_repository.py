"""The SQL of acceptance, on one connection of its own.

Plain asyncpg, without a session or a pool: an acceptance is one statement, one round trip and one
commit, whatever the number of rows. Knows nothing of who waits for it. Invariants: each statement's
scope lets it add requests and see none, and is over with its transaction, because a pooler may give
the connection to somebody else then; the same row may be sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

import asyncpg

from app import db
from app.database_url import connect

STATEMENT_TIMEOUT_S = 1.0
LOST = (*db.LOST, RuntimeError)
"""RuntimeError: uvloop's, of a write to a connection that was lost in the same turn."""
_IN_DOUBT = ("08", "40003", "57P")
"""SQLSTATEs that Postgres, or a pooler, may say of a transaction that was committed just before."""

_LEDGER_SCOPE = "SELECT set_config('app.scope', 'ledger', true)"
_ACCEPT = """
WITH scope AS MATERIALIZED (SELECT set_config('app.scope', 'acceptance', true))
INSERT INTO requests (request_id, tenant_id, accepted_at, api_id, key_id, model,
    adapter_version_id, adapter_digest, num_prompt_tokens, max_tokens, adapter_id, base_model_id,
    service_tier, is_first_choice, decision)
SELECT request.* FROM scope, unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[],
    $5::text[], $6::text[], $7::text[], $8::text[], $9::integer[], $10::integer[], $11::text[],
    $12::text[], $13::text[], $14::boolean[], $15::jsonb[]) AS request
"""
# It waits for a transaction that is still about to commit the same row, so that none is missed.
_SETTLE_REQUESTS = """
INSERT INTO requests (request_id, tenant_id, accepted_at, api_id, key_id, model,
    adapter_version_id, adapter_digest, num_prompt_tokens, max_tokens, adapter_id, base_model_id,
    service_tier, is_first_choice, decision, state)
SELECT *, 'ended' FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::text[],
    $6::text[], $7::text[], $8::text[], $9::integer[], $10::integer[], $11::text[], $12::text[],
    $13::text[], $14::boolean[], $15::jsonb[])
ON CONFLICT (request_id, tenant_id, accepted_at) DO UPDATE SET state = 'ended'
"""
# A worker dates them, and so puts them on the bill (`app.usage.jobs`).
_SETTLE_EVENTS = """
INSERT INTO request_events (request_id, tenant_id, adapter_digest, num_prompt_tokens, event, epoch,
    num_cached_tokens, num_generated_tokens, finish_reason, reason_rank, reason_epoch)
SELECT *, 'final', 0, 0, 0, $5::text, 3, 0
FROM unnest($1::text[], $2::text[], $3::text[], $4::integer[])
ON CONFLICT (tenant_id, request_id, event) DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What is kept of a request when it is accepted. The fields are the statement's, in order."""

    request_id: str
    tenant_id: str
    accepted_at: datetime
    api_id: str
    key_id: str
    model: str
    adapter_version_id: str | None
    adapter_digest: str | None
    num_prompt_tokens: int
    max_tokens: int
    adapter_id: str | None = None
    base_model_id: str | None = None
    service_tier: str = "default"
    is_first_choice: bool = True
    decision: str | None = None
    """Why it was admitted (`app.admission.messages.Record`), as JSON."""


_values = attrgetter(*NewRequest.__slots__)
_event_values = attrgetter("request_id", "tenant_id", "adapter_digest", "num_prompt_tokens")


def is_in_doubt(error: Exception) -> bool:
    """Whether what `insert` was to add may be there though it raised this."""
    if isinstance(error, asyncpg.PostgresError):  # it says no, and so it has added nothing
        return (error.sqlstate or "").startswith(_IN_DOUBT)
    return True


class AcceptanceConnection:
    """Connects when it has to. Every method raises one of `LOST`, and is disconnected then."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._connection: asyncpg.Connection | None = None

    async def connect(self) -> None:
        """Does nothing where there is a connection."""
        if self._connection is not None and not self._connection.is_closed():
            return
        self._connection = await connect(self._url, timeout_s=db.CONNECT_TIMEOUT_S)

    async def insert(self, requests: Sequence[NewRequest]) -> None:
        """Add these rows: all of them, or none. Where it raises it may have added them."""
        await self._execute(_ACCEPT, *_columns(requests))

    async def settle(self, requests: Sequence[NewRequest], reason: str) -> None:
        """These requests have ended with `reason`, whether they had been added or not."""
        assert self._connection is not None, "not connected"
        events = map(list, zip(*map(_event_values, requests), strict=True))
        try:
            async with self._connection.transaction():
                await self._connection.execute(_LEDGER_SCOPE, timeout=STATEMENT_TIMEOUT_S)
                await self._execute(_SETTLE_REQUESTS, *_columns(requests))
                await self._execute(_SETTLE_EVENTS, *events, reason)
        except LOST:
            self.terminate()
            raise

    def terminate(self) -> None:
        """Let go of the connection at once."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _execute(self, statement: str, *args: object) -> None:
        assert self._connection is not None, "not connected"
        try:
            await self._connection.execute(statement, *args, timeout=STATEMENT_TIMEOUT_S)
        except BaseException:
            self.terminate()  # in doubt about the statement, and so about the connection
            raise


def _columns(requests: Sequence[NewRequest]) -> list[list[object]]:
    return [list(column) for column in zip(*map(_values, requests), strict=True)]
