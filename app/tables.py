"""The registry's tables, as SQLAlchemy maps them. The migrations are what makes them.

Knows nothing of requests or rules. Invariants the database itself keeps: a child row names its
tenant, and composite foreign keys let it belong only to a parent of the same tenant; row-level
security (migration 0001) is forced on every table here.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    MetaData,
    SmallInteger,
    Text,
    UniqueConstraint,
    false,
    func,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Table(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it from the class)
        str: Text,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[dict[str, Any]]: JSONB,
        list[str]: ARRAY(Text),
    }


class Plan(Table):
    """A named set of limits (`app.plans.limits`), and of a tenant's share where engines are few."""

    __tablename__ = "plans"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    limits: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    weight: Mapped[float | None]
    reserved_share: Mapped[float | None]
    allows_priority: Mapped[bool | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Tenant(Table):
    """`allowed_bases`: which base models may be called by their own ids; None is all."""

    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint("stores_prompts = (prompt_retention_days IS NOT NULL)", name="retention"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    slug: Mapped[str] = mapped_column(unique=True)
    external_id: Mapped[str | None] = mapped_column(unique=True)
    # `metadata` is taken by SQLAlchemy, so the attribute has another name than the column.
    labels: Mapped[dict[str, Any]] = mapped_column("metadata", server_default=text("'{}'::jsonb"))
    # Read by processes from before `limits` was there, and by nothing else.
    concurrency: Mapped[int | None]
    queue_depth: Mapped[int | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    plan_id: Mapped[str | None] = mapped_column(ForeignKey("plans.id"), index=True)
    limits: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    weight: Mapped[float | None]
    reserved_share: Mapped[float | None]
    allows_priority: Mapped[bool | None]
    suspended_at: Mapped[datetime | None]
    allowed_bases: Mapped[list[str] | None]
    stores_prompts: Mapped[bool] = mapped_column(server_default=false())
    prompt_retention_days: Mapped[int | None]


class ApiKey(Table):
    """A key is known by the HMAC of its text; the text itself is never stored.

    `allowed_models`: adapters' names and bases' ids; None is all that the tenant may call.
    """

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    name: Mapped[str]
    key_hash: Mapped[str] = mapped_column(unique=True)
    last4: Mapped[str]
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    disabled_at: Mapped[datetime | None]
    limits: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    # The key whose place this one took, or that made it: they are limited as one.
    counted_as: Mapped[str | None]
    allowed_models: Mapped[list[str] | None]
    replaced_by: Mapped[str | None]
    created_by: Mapped[str | None]
    # Of the API, for requests that name none (`app.api_version`).
    api_version: Mapped[str] = mapped_column(server_default="2026-11-30")
    labels: Mapped[dict[str, Any]] = mapped_column("metadata", server_default=text("'{}'::jsonb"))


class Adapter(Table):
    __tablename__ = "adapters"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), UniqueConstraint("id", "tenant_id"))

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    name: Mapped[str]
    base_model_id: Mapped[str]
    description: Mapped[str | None]
    labels: Mapped[dict[str, Any]] = mapped_column("metadata", server_default=text("'{}'::jsonb"))
    next_number: Mapped[int] = mapped_column(server_default=text("1"))
    limits: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class AdapterVersion(Table):
    """Immutable but for its state (`app.adapters.states`) and how long it will be served.

    `shutdown_on`: the first day on which a deprecated version is not served any more. `activates`:
    it is to be active as soon as it has passed. `certificate`: what an engine measured of it, and
    who says so (`app.adapters.verification`). `strict`: a warning of its check rejects it.
    `provenance`: of `app.adapters.submission`; None for one from before it was kept.
    """

    __tablename__ = "adapter_versions"
    __table_args__ = (
        ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], ondelete="CASCADE"
        ),
        UniqueConstraint("adapter_id", "number"),
        UniqueConstraint("id", "adapter_id", "tenant_id"),
        CheckConstraint(
            "state IN ('verifying', 'validated', 'active', 'deprecated', 'archived', 'rejected',"
            " 'deleting', 'deleted')",
            name="state",
        ),
        Index(
            "uq_adapter_versions_live_digest",
            "adapter_id",
            "digest",
            unique=True,
            postgresql_where=text("state NOT IN ('deleting', 'deleted')"),
        ),
        Index("ix_adapter_versions_locator", "locator"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    adapter_id: Mapped[str]
    number: Mapped[int]
    digest: Mapped[str]
    state: Mapped[str]
    locator: Mapped[str]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[list[dict[str, Any]]]
    manifest: Mapped[dict[str, Any]]
    report: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    activated_at: Mapped[datetime | None]
    shutdown_on: Mapped[date | None]
    activates: Mapped[bool] = mapped_column(server_default=true())
    certificate: Mapped[dict[str, Any] | None]
    strict: Mapped[bool] = mapped_column(server_default=false())
    provenance: Mapped[dict[str, Any] | None]


class AdapterAlias(Table):
    """A moving name of one version of the same adapter, or of several by weight.

    `version_id` is the one with the greatest weight; all of them: `app.adapters.tables`.
    `sticky_by`: the field of a request whose value decides which it means; None: chance.
    `shadow_share` of a hundred of its requests also run on `shadow_version_id`, to compare them.
    """

    __tablename__ = "adapter_aliases"
    __table_args__ = (
        ForeignKeyConstraint(
            ["shadow_version_id", "adapter_id", "tenant_id"],
            ["adapter_versions.id", "adapter_versions.adapter_id", "adapter_versions.tenant_id"],
        ),
        ForeignKeyConstraint(
            ["version_id", "adapter_id", "tenant_id"],
            ["adapter_versions.id", "adapter_versions.adapter_id", "adapter_versions.tenant_id"],
        ),
        ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], ondelete="CASCADE"
        ),
    )

    adapter_id: Mapped[str] = mapped_column(primary_key=True)
    alias: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    version_id: Mapped[str] = mapped_column(index=True)
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())
    sticky_by: Mapped[str | None]
    shadow_version_id: Mapped[str | None]
    shadow_share: Mapped[int | None] = mapped_column(SmallInteger)


class AdapterJob(Table):
    """Work for a worker: `verify` a version (its id) or `remove` bytes (their locator).

    `retain_until`: before that what runs on the bytes is ended, and they stay. `is_guard`: it
    removes what an upload leaves that comes to nothing (`app.adapters.keeping`).

    No foreign key: bytes outlive their tenant, and a worker that holds a job's lock must not wait
    for whoever deletes the version while that one waits for it.
    """

    __tablename__ = "adapter_jobs"
    __table_args__ = (
        CheckConstraint("kind IN ('verify', 'remove')", name="kind"),
        Index("ix_adapter_jobs_due", "kind", "not_before"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    kind: Mapped[str]
    subject: Mapped[str]
    attempts: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    not_before: Mapped[datetime] = mapped_column(server_default=func.now())
    retain_until: Mapped[datetime | None]
    is_guard: Mapped[bool] = mapped_column(server_default=false())
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class AcceptedRequest(Table):
    """One request to an engine, as it was accepted; never its prompt. Partitioned by day.

    accepted -> ended, with the request's `final` event.
    """

    __tablename__ = "requests"
    __table_args__ = (
        CheckConstraint("state IN ('accepted', 'ended')", name="state"),
        Index(
            "ix_requests_open",
            "tenant_id",
            "request_id",
            postgresql_where=text("state = 'accepted'"),
        ),
        {"postgresql_partition_by": "RANGE (accepted_at)"},
    )

    request_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    accepted_at: Mapped[datetime] = mapped_column(primary_key=True)
    api_id: Mapped[str]
    key_id: Mapped[str]
    model: Mapped[str]
    adapter_version_id: Mapped[str | None]
    adapter_digest: Mapped[str | None]
    num_prompt_tokens: Mapped[int]
    max_tokens: Mapped[int]
    state: Mapped[str] = mapped_column(server_default=text("'accepted'"))
    adapter_id: Mapped[str | None]
    base_model_id: Mapped[str | None]
    service_tier: Mapped[str] = mapped_column(server_default=text("'default'"))
    # Of its prompt: the others have the same prompt, which counts once.
    is_first_choice: Mapped[bool] = mapped_column(server_default=text("true"))
    decision: Mapped[dict[str, Any] | None]  # why it was admitted: `app.admission.messages`


class RequestEvent(Table):
    """The ledger: what a request had used at its `checkpoint`, and at its end (`final`).

    Counts are absolute and belong together, with `epoch`, `engine_id`, `queue_ms` and
    `adapter_load_ms`; `finish_reason` has its own rank and epoch (`app.requests.ledger`). From
    `accepted_at` on a `final` event repeats its request's acceptance, so that a bill is read from
    one table (the view `usage_ledger`). No foreign key: the bill outlives the tenant.
    """

    __tablename__ = "request_events"
    __table_args__ = (
        CheckConstraint("event IN ('checkpoint', 'final')", name="event"),
        CheckConstraint("(event = 'final') = (finish_reason IS NOT NULL)", name="finish_reason"),
        Index(
            "ix_request_events_tenant_id_accepted_at",
            "tenant_id",
            "accepted_at",
            postgresql_where=text("event = 'final'"),
        ),
        Index("ix_request_events_accepted_at", "accepted_at", postgresql_using="brin"),
        Index(
            "ix_request_events_undated",
            "recorded_at",
            postgresql_where=text("event = 'final' AND accepted_at IS NULL"),
        ),
    )

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(primary_key=True)
    event: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int]
    num_prompt_tokens: Mapped[int]
    num_cached_tokens: Mapped[int]
    num_generated_tokens: Mapped[int]
    adapter_digest: Mapped[str | None]
    engine_id: Mapped[str | None]
    queue_ms: Mapped[int | None]
    finish_reason: Mapped[str | None]
    reason_rank: Mapped[int] = mapped_column(SmallInteger)
    reason_epoch: Mapped[int]
    recorded_at: Mapped[datetime] = mapped_column(server_default=func.now())
    adapter_load_ms: Mapped[int | None]
    num_reasoning_tokens: Mapped[int] = mapped_column(server_default=text("0"))
    accepted_at: Mapped[datetime | None]
    key_id: Mapped[str | None]
    adapter_id: Mapped[str | None]
    adapter_version_id: Mapped[str | None]
    base_model_id: Mapped[str | None]
    service_tier: Mapped[str | None]
    is_first_choice: Mapped[bool | None]


class UsageHour(Table):
    """A roll-up: what one tenant used in one hour, by what it was used for ('' where by nothing).

    A request lies in the hour in which it was accepted, however long it ran.
    """

    __tablename__ = "usage_hours"
    __table_args__ = (Index("ix_usage_hours_hour", "hour"),)

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)
    adapter_id: Mapped[str] = mapped_column(primary_key=True)
    adapter_version_id: Mapped[str] = mapped_column(primary_key=True)
    base_model_id: Mapped[str] = mapped_column(primary_key=True)
    service_tier: Mapped[str] = mapped_column(primary_key=True)
    num_requests: Mapped[int] = mapped_column(BigInteger)
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger)
    queue_ms: Mapped[int] = mapped_column(BigInteger)
    adapter_load_ms: Mapped[int] = mapped_column(BigInteger)


class UsageStaleHour(Table):
    """An hour whose ledger changed since it was rolled up: until then the ledger itself is read."""

    __tablename__ = "usage_stale_hours"
    __table_args__ = (Index("ix_usage_stale_hours_hour", "hour"),)

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)


class UsageOutbox(Table):
    """One `final` event on its way out. A later `revision` replaces an earlier one as a whole."""

    __tablename__ = "usage_outbox"
    __table_args__ = (
        Index(
            "ix_usage_outbox_due",
            "not_before",
            postgresql_where=text("revision > delivered_revision"),
        ),
    )

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[int] = mapped_column(server_default=text("1"))
    delivered_revision: Mapped[int] = mapped_column(server_default=text("0"))
    delivered: Mapped[dict[str, Any] | None]
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    not_before: Mapped[datetime] = mapped_column(server_default=func.now())
