"""Tenants as the admin API shows and takes them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field

from app.bodies import Body, Label, LabelValue, Line, Timestamp
from app.tables import Tenant

MAX_LABELS = 16
Limit = Annotated[int, Field(ge=1, le=1_000_000)]


class TenantLimits(Body):
    """Where a limit is null the server's default holds."""

    concurrency: Limit | None = None
    queue_depth: Limit | None = None


class TenantCreate(Body):
    slug: str
    external_id: Line | None = None
    metadata: dict[Label, LabelValue] = Field(default_factory=dict, max_length=MAX_LABELS)
    limits: TenantLimits = TenantLimits()


class TenantView(BaseModel):
    object: Literal["tenant"] = "tenant"
    id: str
    slug: str
    external_id: str | None
    metadata: dict[str, str]
    limits: TenantLimits
    created: Timestamp

    @classmethod
    def of(cls, tenant: Tenant) -> Self:
        return cls(
            id=tenant.id,
            slug=tenant.slug,
            external_id=tenant.external_id,
            metadata=tenant.labels,
            limits=TenantLimits(concurrency=tenant.concurrency, queue_depth=tenant.queue_depth),
            created=tenant.created_at,
        )
