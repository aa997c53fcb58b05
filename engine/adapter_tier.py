"""Adapters on the host that can be installed without being read: they were in pages, or nearly.

One of the two things that share the host's bytes (`engine/host_tier.py`). Holds no tensors, knows
nothing of pages. Invariant: an adapter's memory is charged once: what is installed without a copy
is the pool's while it has pages, and the host's after that.
"""

from __future__ import annotations

from typing import Any

from engine.adapter_key import AdapterKey
from engine.adapter_weights import HostWeights
from engine.host_tier import HostTier


class AdapterTier:
    """Keeps what fits; the adapter that was wanted least recently goes first."""

    def __init__(self, tier: HostTier[Any]) -> None:
        self._tier = tier

    def find(self, key: AdapterKey) -> HostWeights | None:
        """What is kept of an adapter, which is wanted now."""
        found: HostWeights | None = self._tier.find(key)
        return found

    def keep(self, key: AdapterKey, host: HostWeights) -> None:
        """Nobody uses it, but somebody may again."""
        self._tier.keep(key, host, host.num_bytes)

    def drop(self, key: AdapterKey) -> None:
        """Forget what is kept of an adapter, if anything is."""
        self._tier.drop(key)

    def would_keep(self, num_bytes: int) -> bool:
        return self._tier.can_hold(num_bytes)

    def installed(self, key: AdapterKey, host: HostWeights) -> None:
        """It has pages from now on: what was copied stays, what was not is not kept twice."""
        if host.is_copied:
            self.keep(key, host)
        else:
            self._tier.drop(key)
