"""How much work waits for engines: what an autoscaler asks.

Knows nothing of Kubernetes. Invariant: `wanted` is 0 only where nothing waits and nothing runs, so
that the last engine is not taken away from under a request.
"""

from __future__ import annotations

from dataclasses import dataclass

SAMPLE_SIZE = 500
"""Requests that are looked at; tokens of a longer queue are extrapolated from them."""


@dataclass(frozen=True, slots=True)
class Demand:
    """`queued_tokens`: prompts and the most that may be answered, of all that waits."""

    num_queued: int
    num_running: int
    queued_tokens: int
    oldest_wait_s: float

    @property
    def wanted(self) -> int:
        """The least number of engines that there should be."""
        return int(self.num_queued > 0 or self.num_running > 0)


def demand_of(row: list[int | bytes]) -> Demand:
    """From the reply of lua/demand.lua."""
    num_queued, num_leased, num_seen, tokens, wait_ms = map(int, row)
    factor = num_queued / num_seen if num_seen else 0.0
    return Demand(
        num_queued=num_queued,
        num_running=num_leased,
        queued_tokens=round(tokens * factor),
        oldest_wait_s=wait_ms / 1000,
    )
