"""How many evaluations one process does at once, each of which asks engines for minutes.

Knows nothing of what is asked. Invariant: whoever is refused is told so at once, and nothing of
that counts against the tenant's day.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.errors import RateLimitedError, UnavailableError

MAX_AT_ONCE = 4
RETRY_AFTER_S = 10.0


@dataclass(slots=True)
class EvaluationSlots:
    """Of one process: the tenants that evaluate a version now."""

    _held: set[str] = field(default_factory=set)

    @contextmanager
    def hold(self, tenant_id: str) -> Iterator[None]:
        """Raises RateLimitedError, UnavailableError (`overloaded`)."""
        if tenant_id in self._held:
            raise RateLimitedError(
                "An evaluation is under way. Please try again when it has ended.",
                type="concurrency",
                retry_after_s=RETRY_AFTER_S,
            )
        if len(self._held) >= MAX_AT_ONCE:
            raise UnavailableError(
                "Too many evaluations are under way. Please try again later.",
                code="overloaded",
                internal="evaluations: all slots are held",
                retry_after_s=RETRY_AFTER_S,
            )
        self._held.add(tenant_id)
        try:
            yield
        finally:
            self._held.discard(tenant_id)
