"""Plans and limits as the admin API shows and takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field

from app.bodies import Body, Timestamp
from app.etags import Tagged
from app.plans.limits import Limit, Mode, Scope, Terms
from app.tables import Plan
from app.uploads.quotas import QuotaInForce

MAX_COUNT = 5 * 10**12  # a thousand times that is still exact in the counters
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Weight = Annotated[float, Field(gt=0, le=1000)]
Share = Annotated[float, Field(ge=0, le=1)]


class SubjectCounts(Body):
    """Limits that a tenant, a key and an adapter can have. Absent: inherited; null: none."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    tokens_per_day: Count | None = None
    concurrency: Count | None = None
    tokens_per_month: Count | None = None
    soft_tokens_per_month: Count | None = None
    cost_micros_per_month: Count | None = None
    soft_cost_micros_per_month: Count | None = None


class Counts(SubjectCounts):
    """A tenant's: it alone has a queue, and adapters."""

    queue_depth: Count | None = None
    override_bytes: Count | None = None
    adapters: Count | None = None
    adapter_bytes: Count | None = None
    adapter_rank: Count | None = None
    uploads_per_day: Count | None = None
    open_uploads: Count | None = None
    golden_prompts_per_day: Count | None = None


class SubjectLimits(SubjectCounts):
    """Limits of a key or an adapter; those under `dry_run` are recorded and refuse nobody."""

    dry_run: SubjectCounts | None = None

    def stored(self) -> dict[str, Any]:
        """What was said, and nothing of what was not."""
        return self.model_dump(exclude_unset=True)


class Limits(Counts):
    """Limits of a tenant or a plan; those under `dry_run` are recorded and refuse nobody."""

    dry_run: Counts | None = None

    def stored(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class PlanPut(Body):
    """A plan as a whole. `weight`, `reserved_share`, `allows_priority`: null is the default."""

    limits: Limits = Limits()
    weight: Weight | None = None
    reserved_share: Share | None = None
    allows_priority: bool | None = None


class PlanCreate(PlanPut):
    name: str


class PlanView(Tagged):
    object: Literal["plan"] = "plan"
    id: str
    name: str
    limits: dict[str, Any]
    weight: float | None
    reserved_share: float | None
    allows_priority: bool | None
    created: Timestamp

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(
            id=plan.id,
            name=plan.name,
            limits=plan.limits,
            weight=plan.weight,
            reserved_share=plan.reserved_share,
            allows_priority=plan.allows_priority,
            created=plan.created_at,
        )


class TenantLimitsPut(PlanPut):
    """A tenant's own limits as a whole: what is absent here, its plan says."""


class TenantPlanPut(Body):
    """The plan's name; null takes the tenant off its plan."""

    plan: str | None


class LimitView(BaseModel):
    """One limit in force, and who set it."""

    kind: str
    scope: Scope
    subject_id: str
    limit: int
    mode: Mode
    source: str

    @classmethod
    def of(cls, limit: Limit) -> Self:
        return cls(
            kind=limit.kind,
            scope=limit.scope,
            subject_id=limit.subject_id,
            limit=limit.limit,
            mode=limit.mode,
            source=limit.source,
        )


class LimitsView(Tagged):
    """What is set here, and what is in force because of it and of all else."""

    object: Literal["limits"] = "limits"
    limits: dict[str, Any]
    in_force: list[LimitView]

    @classmethod
    def of_subject(cls, stored: dict[str, Any], in_force: Iterable[Limit]) -> Self:
        """Of a key or an adapter."""
        return cls(limits=stored, in_force=[LimitView.of(each) for each in in_force])


class QuotaView(BaseModel):
    """One of the quotas in force (`app.uploads.quotas`), and who set it."""

    quota: str
    limit: int
    source: str


class TenantLimitsView(LimitsView):
    plan: str | None
    weight: float
    reserved_share: float
    allows_priority: bool
    quotas: list[QuotaView]

    @classmethod
    def of(
        cls,
        stored: dict[str, Any],
        plan: Plan | None,
        terms: Terms,
        quotas: Iterable[QuotaInForce],
    ) -> Self:
        return cls(
            limits=stored,
            in_force=[LimitView.of(each) for each in terms.limits],
            plan=None if plan is None else plan.name,
            weight=terms.weight,
            reserved_share=terms.reserved_share,
            allows_priority=terms.allows_priority,
            quotas=[
                QuotaView(quota=each.quota, limit=each.limit, source=each.source) for each in quotas
            ],
        )
