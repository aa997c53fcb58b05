"""In what order an engine is given what waits: the figures that lua/lease.lua goes by.

Knows nothing of Redis. Invariant: all engines of an installation go by the same figures, or each
would have its own idea of what is fair.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """Seconds, and prompt tokens over a tenant's weight."""

    max_age_s: float = 0.5
    """From then on a request that waits for room bars the way, and is passed for no adapter."""
    affinity_slack_tokens: int = 1024
    """An engine prefers requests for adapters that it holds, of tenants at most so far ahead."""
    affinity_wait_s: float = 0.05
    """How long a request may be passed for that, in all."""
    priority_slack_tokens: int = 4096
    """A priority request goes before others', while its tenant is at most so far ahead of them."""
    flex_wait_s: float = 30.0
    """Then a flex request yields no more."""

    def as_arguments(self) -> list[int]:
        """The last of lua/lease.lua's."""
        return [
            self.affinity_slack_tokens,
            int(self.affinity_wait_s * 1000),
            self.priority_slack_tokens,
            int(self.flex_wait_s * 1000),
        ]
