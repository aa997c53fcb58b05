"""Values of shadows: what runs beside an alias, and how far one of its answers agreed.

Knows nothing of how they run.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import AdapterRef


@dataclass(frozen=True, slots=True)
class ShadowModel:
    """A version that a request is to run on as well, for comparison. `share`: of a hundred.

    template_sha256: of the chat template that the version brought with it, if it did.
    """

    adapter: AdapterRef
    version_id: str
    adapter_id: str
    alias: str
    share: int
    template_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ShadowSample:
    """One comparison. `num_same`: characters before the two differ."""

    at_s: float
    version_id: str
    is_error: bool
    num_chars: int = 0
    num_shadow_chars: int = 0
    num_same: int = 0

    @property
    def is_identical(self) -> bool:
        is_as_long = self.num_chars == self.num_shadow_chars == self.num_same
        return not self.is_error and is_as_long

    @property
    def agreement(self) -> float:
        longest = max(self.num_chars, self.num_shadow_chars)
        return 1.0 if longest == 0 else self.num_same / longest
