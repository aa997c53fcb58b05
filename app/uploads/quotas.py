"""How many adapters, bytes and uploads of a day a tenant may have, and of which rank.

Knows nothing of HTTP. Quotas are members of the same `limits` that plans and tenants have
(`app.plans.limits`), and follow the same rule: what is absent is inherited, null is none, 0 lets
nothing pass. Invariants: of two requests at once no more pass than of one after the other; what is
refused here has left no bytes in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import NO_RETRY, ApiError
from app.plans.limits import Layer
from app.plans.repository import plan_of
from app.tables import Plan, Tenant
from app.uploads.quotas_repository import QuotaRepository


class Quota(StrEnum):
    """What is limited: numbers, bytes in the store, uploads of a day of UTC, rank of a module.

    `open_uploads`: uploads in parts that have not ended. `golden_prompts_per_day`: of rollouts.
    """

    ADAPTERS = "adapters"
    ADAPTER_BYTES = "adapter_bytes"
    UPLOADS_PER_DAY = "uploads_per_day"
    ADAPTER_RANK = "adapter_rank"
    OPEN_UPLOADS = "open_uploads"
    GOLDEN_PROMPTS_PER_DAY = "golden_prompts_per_day"


# For whoever nobody said anything of: nothing is unlimited by omission. A rank has a limit of its
# own for all (`lora.limits`).
DEFAULTS = Layer(
    "default",
    {
        Quota.ADAPTERS: 10_000,
        Quota.ADAPTER_BYTES: 1 << 40,
        Quota.UPLOADS_PER_DAY: 10_000,
        Quota.OPEN_UPLOADS: 64,
        Quota.GOLDEN_PROMPTS_PER_DAY: 1_000,
    },
)


@dataclass(frozen=True, slots=True)
class QuotaInForce:
    """`source` says who set it: `default`, `plan:gold` or `tenant`."""

    quota: Quota
    limit: int
    source: str


class QuotaExceededError(ApiError):
    """403 `quota_exceeded`; `error.quota` says which, how much of it, and who set it."""

    def __init__(self, quota: QuotaInForce, used: int, wanted: int) -> None:
        super().__init__(
            403,
            "quota_exceeded",
            "permission_error",
            f"The quota '{quota.quota}' is {quota.limit}: {used} is in use, {wanted} more was asked"
            " for.",
            param=quota.quota,
            headers=NO_RETRY,
            details={
                "quota": {
                    "name": quota.quota,
                    "limit": quota.limit,
                    "used": used,
                    "wanted": wanted,
                    "source": quota.source,
                }
            },
        )


class Quotas:
    """One tenant's. The session is in its scope, and holds its lock from the first check on."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._counts = QuotaRepository(session, tenant_id)
        self._in_force: dict[Quota, QuotaInForce] | None = None

    async def in_force(self, quota: Quota) -> QuotaInForce | None:
        """For what is counted elsewhere; None: it is unlimited."""
        return (await self._load()).get(quota)

    async def check_adapters(self) -> None:
        """Whether the adapter that this transaction has made may be."""
        await self._load()
        await self._check(Quota.ADAPTERS, await self._counts.count_adapters() - 1, 1)

    async def take_upload(self, at: datetime, num_bytes: int, *, in_parts: bool = False) -> None:
        """Count an upload, and see whether its bytes would find room beside those on their way.

        in_parts: see also whether one more upload in parts may be begun.
        """
        await self._load()
        day = at.astimezone(UTC).date()
        used = await self._counts.count_upload(day)
        await self._check(Quota.UPLOADS_PER_DAY, used - 1, 1)
        num_open, open_bytes = await self._counts.open_uploads(at)
        stored_bytes = await self._counts.stored_bytes()
        await self._check(Quota.ADAPTER_BYTES, stored_bytes + open_bytes, num_bytes)
        if in_parts:
            await self._check(Quota.OPEN_UPLOADS, num_open, 1)

    async def check_version(self, num_bytes: int, max_rank: int) -> None:
        """Whether a version of so many bytes and this rank may be kept."""
        await self._load()
        await self._check(Quota.ADAPTER_BYTES, await self._counts.stored_bytes(), num_bytes)
        await self._check(Quota.ADAPTER_RANK, 0, max_rank)

    async def _check(self, quota: Quota, used: int, wanted: int) -> None:
        in_force = (await self._load()).get(quota)
        if in_force is not None and used + wanted > in_force.limit:
            raise QuotaExceededError(in_force, used, wanted)

    async def _load(self) -> dict[Quota, QuotaInForce]:
        if self._in_force is None:
            await self._counts.lock()
            tenant = await self._counts.tenant()
            layers = []
            if tenant is not None:
                layers = quota_layers(tenant, await plan_of(self._session, tenant))
            self._in_force = {each.quota: each for each in quotas_in_force(layers)}
        return self._in_force


def quota_layers(tenant: Tenant, plan: Plan | None) -> list[Layer]:
    """What is said of a tenant's quotas, the strongest last."""
    of_plan = [] if plan is None else [Layer(f"plan:{plan.name}", plan.limits)]
    return [DEFAULTS, *of_plan, Layer("tenant", tenant.limits)]


def quotas_in_force(layers: Sequence[Layer]) -> list[QuotaInForce]:
    """The quotas of one tenant, from the weakest layer to the strongest."""
    found = []
    for quota in Quota:
        layer = next((each for each in reversed(layers) if quota in each.limits), None)
        if layer is not None and layer.limits[quota] is not None:
            found.append(QuotaInForce(quota, layer.limits[quota], layer.source))
    return found
