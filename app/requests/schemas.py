"""What operators are shown of a request. Knows nothing of SQL; never a prompt or a token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel

from app.bodies import Timestamp
from app.tables import AcceptedRequest, RequestEvent


class RequestEventView(BaseModel):
    event: str
    finish_reason: str | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_reasoning_tokens: int
    queue_ms: int | None
    engine_id: str | None
    epoch: int
    adapter_digest: str | None
    recorded_at: Timestamp

    @staticmethod
    def of(row: RequestEvent) -> RequestEventView:
        return RequestEventView(
            event=row.event,
            finish_reason=row.finish_reason,
            num_prompt_tokens=row.num_prompt_tokens,
            num_cached_tokens=row.num_cached_tokens,
            num_generated_tokens=row.num_generated_tokens,
            num_reasoning_tokens=row.num_reasoning_tokens,
            queue_ms=row.queue_ms,
            engine_id=row.engine_id,
            epoch=row.epoch,
            adapter_digest=row.adapter_digest,
            recorded_at=row.recorded_at,
        )


class RequestView(BaseModel):
    id: str
    object: Literal["request"] = "request"
    tenant_id: str
    key_id: str
    api_id: str
    model: str
    adapter_version_id: str | None
    adapter_digest: str | None
    num_prompt_tokens: int
    max_tokens: int
    accepted_at: Timestamp
    state: str
    events: list[RequestEventView]

    @staticmethod
    def of(row: AcceptedRequest, events: Iterable[RequestEvent]) -> RequestView:
        return RequestView(
            id=row.request_id,
            tenant_id=row.tenant_id,
            key_id=row.key_id,
            api_id=row.api_id,
            model=row.model,
            adapter_version_id=row.adapter_version_id,
            adapter_digest=row.adapter_digest,
            num_prompt_tokens=row.num_prompt_tokens,
            max_tokens=row.max_tokens,
            accepted_at=row.accepted_at,
            state=row.state,
            events=[RequestEventView.of(event) for event in events],
        )
