"""From rows of the registry to the terms that a request is held to.

Knows nothing of counters. Invariant: a tenant without a plan, and a limit that nobody names, have
the server's defaults, so that nothing is unlimited by omission.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.plans.limits import Kind, Layer, Limit, Terms, limits_in_force, strongest
from app.settings import Settings
from app.tables import ApiKey, Plan, Tenant


def defaults_of(settings: Settings) -> Layer:
    return Layer(
        "default",
        {
            Kind.CONCURRENCY: settings.tenant_concurrency,
            Kind.QUEUE_DEPTH: settings.tenant_queue_depth,
        },
    )


def tenant_layers(tenant: Tenant, plan: Plan | None, settings: Settings) -> list[Layer]:
    """What is said of a tenant's limits, the strongest last."""
    layers = [defaults_of(settings)]
    if plan is not None:
        layers.append(Layer(f"plan:{plan.name}", plan.limits))
    return [*layers, Layer("tenant", tenant.limits)]


def tenant_terms(tenant: Tenant, plan: Plan | None, settings: Settings) -> Terms:
    rows: list[Plan | Tenant] = [tenant] if plan is None else [plan, tenant]
    return Terms(
        limits=tuple(limits_in_force("tenant", tenant.id, tenant_layers(tenant, plan, settings))),
        weight=strongest((row.weight for row in rows), 1.0),
        reserved_share=strongest((row.reserved_share for row in rows), 0.0),
        allows_priority=strongest((row.allows_priority for row in rows), False),
    )


def counted_key_id(key: ApiKey) -> str:
    """Whose counters the key has."""
    return key.counted_as or key.id


def key_limits(key: ApiKey) -> tuple[Limit, ...]:
    return tuple(limits_in_force("key", counted_key_id(key), [Layer("key", key.limits)]))


def adapter_limits(adapter_id: str, limits: Mapping[str, Any]) -> tuple[Limit, ...]:
    return tuple(limits_in_force("adapter", adapter_id, [Layer("adapter", limits)]))


def terms_of(key: ApiKey, tenant: Tenant, plan: Plan | None, settings: Settings) -> Terms:
    """The tenant's terms, and its key's limits besides."""
    terms = tenant_terms(tenant, plan, settings)
    return Terms(
        counted_key_id=counted_key_id(key),
        limits=(*terms.limits, *key_limits(key)),
        weight=terms.weight,
        reserved_share=terms.reserved_share,
        allows_priority=terms.allows_priority,
    )
