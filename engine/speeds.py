"""How fast this engine computes, loads and copies: measured as it runs, guessed before.

Knows nothing of what the figures decide (`engine/eviction.py`, `engine/policy.py`). Invariant:
every speed is positive.
"""

from __future__ import annotations

from dataclasses import dataclass

WEIGHT = 0.1
"""Of a new measurement in the running mean."""
MIN_S = 1e-6


@dataclass(slots=True)
class Speeds:
    """The values at construction are guesses; each measurement moves one of them."""

    prefill_tokens_per_s: float
    """Tokens of prompts, in steps that are full of them."""
    load_bytes_per_s: float
    """An adapter's bytes from where it is fetched to where it can be installed."""
    link_bytes_per_s: float
    """Pages between the device and the host."""

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        self.prefill_tokens_per_s = _mean(self.prefill_tokens_per_s, num_tokens, seconds)

    def observe_load(self, num_bytes: int, seconds: float) -> None:
        self.load_bytes_per_s = _mean(self.load_bytes_per_s, num_bytes, seconds)

    def observe_link(self, num_bytes: int, seconds: float) -> None:
        self.link_bytes_per_s = _mean(self.link_bytes_per_s, num_bytes, seconds)


def _mean(speed: float, amount: int, seconds: float) -> float:
    if amount <= 0:
        return speed
    return (1 - WEIGHT) * speed + WEIGHT * amount / max(seconds, MIN_S)
