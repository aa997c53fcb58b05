"""What a tenant's adapters may hold instead of the base's own tensors, in bytes.

Knows nothing of adapters. The limit is a member of the `limits` that plans and tenants have
(`app.plans.limits`), and follows the same rule: what is absent is inherited, null is none, 0 lets
nothing pass.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from app.plans.limits import Layer
from app.plans.repository import plan_of
from app.uploads.quotas_repository import QuotaRepository

LIMIT = "override_bytes"


async def override_limit(session: AsyncSession, tenant_id: str, default: int | None) -> int | None:
    """Bytes of one adapter's whole modules and trained tokens; None: as they come.

    default: the server's, where neither the tenant nor its plan says. In the tenant's scope.
    """
    layers = [Layer("default", {LIMIT: default})]
    tenant = await QuotaRepository(session, tenant_id).tenant()
    if tenant is not None:
        plan = await plan_of(session, tenant)
        layers += [] if plan is None else [Layer("plan", plan.limits)]
        layers.append(Layer("tenant", tenant.limits))
    said: int | None = next(
        layer.limits[LIMIT] for layer in reversed(layers) if LIMIT in layer.limits
    )
    return said
