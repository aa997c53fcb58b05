"""How soon a request is to be served, and how long it may wait: as asked, where that is allowed.

Knows nothing of queues. Invariant: the tier that is answered is the one that is used; what a plan
does not allow is refused under its name, and not served as something else.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.auth import Principal
from app.completions.schemas import CommonBody
from app.errors import BadRequestError
from app.settings import Settings
from engine.messages import ServiceTier

# OpenAI's names. `fast` is their other one for `priority`; capacity for `scale` is not sold here.
_TIERS = {
    None: ServiceTier.DEFAULT,
    "auto": ServiceTier.DEFAULT,
    "default": ServiceTier.DEFAULT,
    "scale": ServiceTier.DEFAULT,
    "flex": ServiceTier.FLEX,
    "priority": ServiceTier.PRIORITY,
    "fast": ServiceTier.PRIORITY,
}


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """`queue_timeout_s`: no engine starts with it later than that after it was accepted."""

    tier: ServiceTier
    queue_timeout_s: float


def service_class(body: CommonBody, principal: Principal, settings: Settings) -> ServiceClass:
    """Raises BadRequestError: `service_tier_not_allowed`, or a time-out above the greatest."""
    tier = _TIERS[body.service_tier]
    if tier is ServiceTier.PRIORITY and not principal.allows_priority:
        raise BadRequestError(
            "Your plan does not include the service tier 'priority'.",
            code="service_tier_not_allowed",
            param="service_tier",
        )
    timeout_s = body.queue_timeout or settings.queue_timeout_s
    if timeout_s > settings.max_queue_timeout_s:
        raise BadRequestError(
            f"'queue_timeout' may be at most {settings.max_queue_timeout_s:g} seconds.",
            param="queue_timeout",
        )
    return ServiceClass(tier, timeout_s)
