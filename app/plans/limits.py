"""Which limits are in force for whom, and who set each.

Pure: knows nothing of counters, HTTP or SQL. Invariant: what is absent is inherited, null is no
limit, and 0 lets nothing pass; of a tenant's limits the last layer that names one decides (the
server's default, the plan, the tenant itself), while those of a key and of an adapter hold besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import msgspec

DRY_RUN = "dry_run"


class Kind(StrEnum):
    """What is limited. Windows and days are of the server that counts: 60 s, and days of UTC."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"
    CONCURRENCY = "concurrency"
    QUEUE_DEPTH = "queue_depth"
    TOKENS_PER_MONTH = "tokens_per_month"
    COST_PER_MONTH = "cost_micros_per_month"


Scope = Literal["tenant", "key", "adapter"]
Mode = Literal["hard", "soft", "dry_run"]
_HARD: Mode = "hard"
_SOFT: Mode = "soft"
_SHADOW: Mode = "dry_run"

SOFT_FIELDS = {
    "soft_tokens_per_month": Kind.TOKENS_PER_MONTH,
    "soft_cost_micros_per_month": Kind.COST_PER_MONTH,
}
PER_MINUTE = frozenset({Kind.REQUESTS_PER_MINUTE, Kind.TOKENS_PER_MINUTE})
BUDGETS = frozenset({Kind.TOKENS_PER_MONTH, Kind.COST_PER_MONTH})
SPENT = BUDGETS | {Kind.TOKENS_PER_DAY}
"""Counted in the ledger as well, which is the truth."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit in force. `hard` refuses; `soft` and `dry_run` only leave a trace.

    `limit` is in requests, tokens, or millionths of the price book's currency. `source` says who
    set it: `default`, `plan:gold`, `tenant`, `key` or `adapter`.
    """

    kind: Kind
    scope: Scope
    subject_id: str
    limit: int
    mode: Mode
    source: str

    @property
    def subject(self) -> str:
        return subject_of(self.scope, self.subject_id)


@dataclass(frozen=True, slots=True)
class Layer:
    """What one place says: the stored form of `app.plans.schemas.Limits`."""

    source: str
    limits: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Terms:
    """All that a tenant and its key are held to, and the tenant's part where engines are few.

    `weight`: with twice of it goes twice the service. `reserved_share`: of the engines, 0 to 1.
    `counted_key_id`: the key whose counters this key has, its own or those of where it comes from.
    """

    limits: tuple[Limit, ...] = ()
    counted_key_id: str = ""
    weight: float = 1.0
    reserved_share: float = 0.0
    allows_priority: bool = False

    def smallest(self, kind: Kind) -> int | None:
        """The lowest hard limit of this kind; None where there is none."""
        found = [each.limit for each in self.limits if each.kind is kind and each.mode == "hard"]
        return min(found, default=None)


def subject_of(scope: Scope, subject_id: str) -> str:
    """How counters name whoever is limited."""
    return f"{scope}:{subject_id}"


def limits_in_force(scope: Scope, subject_id: str, layers: Sequence[Layer]) -> list[Limit]:
    """The limits of one subject, from the weakest layer to the strongest."""
    shadows = [Layer(each.source, each.limits.get(DRY_RUN) or {}) for each in layers]
    found: list[Limit] = []
    for name, kind, mode, said in (
        *((kind.value, kind, _HARD, layers) for kind in Kind),
        *((name, kind, _SOFT, layers) for name, kind in SOFT_FIELDS.items()),
        *((kind.value, kind, _SHADOW, shadows) for kind in Kind),
    ):
        layer = next((each for each in reversed(said) if name in each.limits), None)
        if layer is None or layer.limits[name] is None:
            continue
        found.append(
            Limit(
                kind=kind,
                scope=scope,
                subject_id=subject_id,
                limit=layer.limits[name],
                mode=mode,
                source=layer.source,
            )
        )
    return found


def strongest(values: Iterable[Any], default: Any) -> Any:
    """The last value that is not None."""
    found = [value for value in values if value is not None]
    return found[-1] if found else default
