"""Batches over REST: OpenAI's objects. Knows nothing of SQL or of how lines are run."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from app.batches.tables import Batch
from app.bodies import Body, Timestamp
from app.completions.fields import Metadata, Text
from app.etags import Tagged
from app.files.schemas import ExpiresAfter

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WINDOW = "24h"


class BatchCreate(Body):
    input_file_id: Text
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class InputDetails(BaseModel):
    cached_tokens: int


class OutputDetails(BaseModel):
    reasoning_tokens: int


class BatchUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]


class BatchView(Tagged):
    """OpenAI's, and an etag, which says nothing of how many lines are done."""

    stateless: ClassVar = frozenset({"request_counts", "usage"})

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str = WINDOW
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: Timestamp
    in_progress_at: Timestamp | None
    expires_at: Timestamp
    finalizing_at: Timestamp | None
    completed_at: Timestamp | None
    failed_at: Timestamp | None
    expired_at: Timestamp | None
    cancelling_at: Timestamp | None
    cancelled_at: Timestamp | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, row: Batch) -> BatchView:
        return cls(
            id=row.id,
            endpoint=row.endpoint,
            model=row.model,
            errors=BatchErrors(data=row.errors) if row.errors else None,
            input_file_id=row.input_file_id,
            status=row.status,
            output_file_id=row.output_file_id,
            error_file_id=row.error_file_id,
            created_at=row.created_at,
            in_progress_at=row.in_progress_at,
            expires_at=row.expires_at,
            finalizing_at=row.finalizing_at,
            completed_at=row.completed_at,
            failed_at=row.failed_at,
            expired_at=row.expired_at,
            cancelling_at=row.cancelling_at,
            cancelled_at=row.cancelled_at,
            request_counts=RequestCounts(
                total=row.num_total, completed=row.num_completed, failed=row.num_failed
            ),
            usage=BatchUsage(
                input_tokens=row.input_tokens,
                input_tokens_details=InputDetails(cached_tokens=row.cached_tokens),
                output_tokens=row.output_tokens,
                output_tokens_details=OutputDetails(reasoning_tokens=row.reasoning_tokens),
                total_tokens=row.input_tokens + row.output_tokens,
            ),
            metadata=row.labels,
        )
