"""What the scripts of admission are asked and answer, as msgpack.

Knows nothing of Redis. Invariant: amounts are whole numbers that a double holds exactly: tokens,
requests, and money in billionths of the price book's currency.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from app.plans.limits import Kind, Limit, Mode, Scope, subject_of

NANOS = 10**9
NANOS_PER_MICRO = 1000
MILLION = 1_000_000


class Prices(msgspec.Struct, frozen=True):
    """What a million tokens cost, in billionths of the currency."""

    input: int
    cached: int
    output: int

    def cost(self, *, num_input: int, num_cached: int, num_output: int) -> int:
        """In billionths, rounded up. `num_cached` is a part of `num_input`."""
        whole = (
            (num_input - num_cached) * self.input
            + num_cached * self.cached
            + num_output * self.output
        )
        return -(-whole // MILLION)


class SequenceAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What one sequence may use at most; the prompt counts with the first choice of it only."""

    id: str
    tokens: int
    cost: int


class CountedLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A `Limit` in the units of its counter."""

    kind: Kind
    scope: Scope
    subject_id: str
    subject: str
    limit: int
    mode: Mode
    source: str

    @classmethod
    def of(cls, limit: Limit) -> CountedLimit:
        return cls(
            kind=limit.kind,
            scope=limit.scope,
            subject_id=limit.subject_id,
            subject=limit.subject,
            limit=limit.limit * (NANOS_PER_MICRO if limit.kind is Kind.COST_PER_MONTH else 1),
            mode=limit.mode,
            source=limit.source,
        )


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request. `subjects` are charged; `windows` and `places` are those that are limited.

    `tenant_id` has a place in any case: it is what `refresh` knows a lost server by.
    """

    request_id: str
    tenant_id: str
    key_id: str
    model: str
    sequences: list[SequenceAsk]
    limits: list[CountedLimit]
    subjects: list[str]
    windows: list[str]
    places: list[str]
    lease_ms: int
    adapter_id: str | None = None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """How one limit stood before this request. `free_ms` -1: it lets so much never pass."""

    used: int
    amount: int
    is_over: bool
    free_ms: int
    reset_ms: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["admitted", "refused", "unloaded"]
    now_ms: int
    checks: list[Check]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked and what was answered; `verdict.checks[i]` is of `ask.limits[i]`."""

    ask: Ask
    verdict: Verdict

    def checked(self) -> Iterator[tuple[CountedLimit, Check]]:
        # A repeated ask is answered without a look at its limits.
        return zip(self.ask.limits, self.verdict.checks, strict=False)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says of one subject: the fields of `spent:<subject>`."""

    subject: str
    version: int
    amounts: dict[str, int]


class OpenSequence(msgspec.Struct, frozen=True, kw_only=True):
    """What an accepted sequence has reserved, which the ledger does not have yet."""

    id: str
    subjects: list[str]
    tokens: int
    cost: int
    day: int


class LatelyUsed(msgspec.Struct, frozen=True, kw_only=True):
    """What one subject had about `age_ms` ago: a part of its minute's windows."""

    subject: str
    age_ms: int
    requests: int
    tokens: int


class TenantSpend(msgspec.Struct, frozen=True, kw_only=True):
    """All that the ledger says of one tenant."""

    tenant_id: str
    version: int
    figures: list[Figures]
    open: list[OpenSequence]
    lately: list[LatelyUsed] = []
    look_ms: int = 10_000


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tokens: int


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit of the ledger changes for admission. All of it is absolute."""

    figures: list[Figures] = []
    ended: list[Ended] = []


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence in flight, as `refresh` tells of it."""

    id: str
    places: list[str]
    subjects: list[str]
    tokens: int
    cost: int
    day: int


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of an admission with each sequence that was accepted, as JSON.

    With the first sequence of an HTTP request are `limits`, `checks`, and the tokens of all its
    sequences. `day`: since 1970, by the server that counts.
    """

    subjects: list[str]
    tokens: int
    cost: int
    day: int
    now_ms: int
    prices: Prices | None = None
    all_tokens: int = 0
    limits: list[CountedLimit] = []
    checks: list[Check] = []


def counted_subjects(tenant_id: str, key_id: str, adapter_id: str | None) -> list[str]:
    """Whoever a request is charged to."""
    subjects = [subject_of("tenant", tenant_id), subject_of("key", key_id)]
    return subjects if adapter_id is None else [*subjects, subject_of("adapter", adapter_id)]


def limited(limits: Sequence[Limit], kinds: frozenset[Kind]) -> list[str]:
    """The subjects that have a limit of one of these kinds, each once."""
    return list(dict.fromkeys(each.subject for each in limits if each.kind in kinds))


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)
