"""Tenants as the admin API shows and takes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from app.bodies import Body, Labels, Line, Timestamp
from app.etags import Tagged
from app.plans.schemas import Limits
from app.tables import Tenant

MAX_BASES = 64
MAX_RETENTION_DAYS = 3650
Bases = Annotated[list[Line], Field(max_length=MAX_BASES)]


class DataPolicy(Body):
    """Whether prompts and answers may be kept at all, and then for how long. By default: never."""

    store_prompts: bool = False
    retention_days: Annotated[int, Field(ge=1, le=MAX_RETENTION_DAYS)] | None = None

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.store_prompts != (self.retention_days is not None):
            raise ValueError("retention_days goes with store_prompts, and only with it")
        return self


class TenantCreate(Body):
    """`allowed_bases`: ids of base models that may be called without an adapter; null is all.

    `plan`: the name of the plan that it is on from the start.
    """

    slug: str
    external_id: Line | None = None
    plan: str | None = None
    metadata: Labels = Field(default_factory=dict)
    limits: Limits = Limits()
    allowed_bases: Bases | None = None
    data_policy: DataPolicy = DataPolicy()


class TenantPatch(Body):
    """What is not sent stays as it is."""

    external_id: Line | None = None
    metadata: Labels = Field(default_factory=dict)
    allowed_bases: Bases | None = None
    data_policy: DataPolicy = DataPolicy()


class TenantView(Tagged):
    object: Literal["tenant"] = "tenant"
    id: str
    slug: str
    status: Literal["active", "suspended"]
    external_id: str | None
    metadata: dict[str, str]
    limits: dict[str, Any]
    plan_id: str | None
    allowed_bases: list[str] | None
    data_policy: DataPolicy
    created: Timestamp
    suspended_at: Timestamp | None

    @classmethod
    def of(cls, tenant: Tenant) -> Self:
        return cls(
            id=tenant.id,
            slug=tenant.slug,
            status="active" if tenant.suspended_at is None else "suspended",
            external_id=tenant.external_id,
            metadata=tenant.labels,
            limits=tenant.limits,
            plan_id=tenant.plan_id,
            allowed_bases=tenant.allowed_bases,
            data_policy=DataPolicy(
                store_prompts=tenant.stores_prompts, retention_days=tenant.prompt_retention_days
            ),
            created=tenant.created_at,
            suspended_at=tenant.suspended_at,
        )


class TenantDeleted(BaseModel):
    """`erased`: how many keys, adapters and versions went with the tenant, and of how many bytes.

    `bytes_gone_within_s`: when the worker has removed the last of them.
    """

    id: str
    object: Literal["tenant"] = "tenant"
    deleted: Literal[True] = True
    erased: dict[str, int]
    bytes_gone_within_s: int
