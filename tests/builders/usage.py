"""Usage records and acceptances for tests. Knows nothing of where they go."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count

from app.requests.acceptance_repository import NewRequest
from engine.messages import UsageAuthor, UsageRecord

_numbers = count()


def make_record(
    request_id: str = "req_a",
    *,
    reason: str | None = "stop",
    author: UsageAuthor = UsageAuthor.ENGINE,
    epoch: int = 1,
    generated: int = 10,
    tenant_id: str = "ten_a",
) -> UsageRecord:
    return UsageRecord(
        author=author,
        request_id=request_id,
        tenant_id=tenant_id,
        epoch=epoch,
        num_prompt_tokens=3,
        num_generated_tokens=generated,
        finish_reason=reason,
        engine_id="engine-a" if author is UsageAuthor.ENGINE else None,
    )


def new_request(
    request_id: str | None = None,
    *,
    tenant_id: str = "ten_a",
    api_id: str = "api-a",
    accepted_at: datetime | None = None,
) -> NewRequest:
    return NewRequest(
        request_id=request_id or f"req_{next(_numbers)}",
        tenant_id=tenant_id,
        accepted_at=accepted_at or datetime.now(UTC),
        api_id=api_id,
        key_id="key_a",
        model="support-bot",
        adapter_version_id="ver_a",
        adapter_digest="sha256:a",
        num_prompt_tokens=3,
        max_tokens=16,
    )
