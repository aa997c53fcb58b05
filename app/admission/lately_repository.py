"""The SQL of the last minute: what the windows of a Redis that lost its data had.

Knows nothing of Redis. Invariant: a request counts when it was accepted, with what it used if that
is known, and else with what it has reserved: as the windows count it, but for what comes back at
its end.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Any

import msgspec
from sqlalchemy import and_, extract, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.admission.messages import LatelyUsed, Record
from app.tables import AcceptedRequest, RequestEvent

SPAN = timedelta(seconds=62)  # of 31 buckets of 2 s: lua/counters.lua
BUCKET_MS = 2000


async def read_lately(session: AsyncSession, tenant_id: str) -> list[LatelyUsed]:
    """By subject and bucket. In the tenant's scope."""
    age = extract("epoch", func.now() - AcceptedRequest.accepted_at) * 1000
    query = (
        select(
            AcceptedRequest.decision,
            AcceptedRequest.is_first_choice,
            age,
            RequestEvent.num_prompt_tokens,
            RequestEvent.num_generated_tokens,
        )
        .outerjoin(
            RequestEvent,
            and_(
                RequestEvent.tenant_id == AcceptedRequest.tenant_id,
                RequestEvent.request_id == AcceptedRequest.request_id,
                RequestEvent.event == "final",
            ),
        )
        .where(
            AcceptedRequest.tenant_id == tenant_id,
            AcceptedRequest.accepted_at >= func.now() - SPAN,
            AcceptedRequest.decision.is_not(None),
        )
    )
    return _by_bucket(list(await session.execute(query)))


def _by_bucket(rows: list[Any]) -> list[LatelyUsed]:
    found: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for decision, is_first_choice, age, num_prompt, num_generated in rows:
        record = msgspec.convert(decision, Record)
        tokens = record.tokens
        if num_generated is not None:
            tokens = num_generated + (num_prompt if is_first_choice and num_generated else 0)
        bucket = max(0, int(age)) // BUCKET_MS
        for subject in record.subjects:
            counts = found[subject, bucket]
            counts[0] += record.all_tokens > 0  # of an HTTP request's sequences the first has it
            counts[1] += tokens
    return [
        LatelyUsed(subject=subject, age_ms=bucket * BUCKET_MS, requests=requests, tokens=tokens)
        for (subject, bucket), (requests, tokens) in found.items()
    ]
