"""Judges a run by what its clients logged, the ledger's rows, and answers known beforehand.

Knows nothing of the code under test: neither how requests move nor how rows are merged. Invariant:
every call and every row is judged; a row that no client knows of needs an innocent reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil


class Outcome(StrEnum):
    OK = "ok"
    REFUSED = "refused"
    """A definite no, before anything was promised."""
    FAILED = "failed"
    """An error after the head of an answer."""
    CUT = "cut"
    """The connection ended without an end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an undisturbed run gives."""

    text: str
    num_tokens: int
    finish_reason: str


@dataclass(slots=True)
class Call:
    """One call of a client: what it asked, and all that it heard."""

    asked: Hashable
    invoked_at: float
    request_id: str | None = None
    pieces: list[str] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    num_tokens: int | None = None
    num_ends: int = 0
    longest_gap_s: float = 0.0
    outcome: Outcome = Outcome.CUT
    why: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Row:
    """A request of the ledger; `finals` are its last words, as (finish reason, tokens, epoch)."""

    request_id: str
    state: str
    finals: Sequence[tuple[str, int, int]]


@dataclass(slots=True)
class Verdict:
    """Sentences on what is wrong, by kind. An answer that moved needed more than one engine."""

    num_calls: int
    num_ok: int
    num_cut: int
    refused: Counter[str]
    """By what they were told."""
    gaps_s: list[float]
    """Of each answer that moved, the longest time without a word."""
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    ledger: list[str] = field(default_factory=list)

    @property
    def moved(self) -> int:
        return len(self.gaps_s)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.different or self.ledger)

    def summary(self, kills: str) -> str:
        p50, p99, longest = (self.gap_s(share) for share in (0.5, 0.99, 1.0))
        refused = ", ".join(f"{num} refused ({why})" for why, num in self.refused.most_common())
        return (
            f"{kills}: {self.num_calls} calls, {self.num_ok} ok, {refused or 'none refused'}, "
            f"{self.num_cut} cut, {self.moved} moved, their gap "
            f"p50 {p50:.2f} p99 {p99:.2f} max {longest:.2f} s; lost {len(self.lost)}, "
            f"duplicated {len(self.duplicated)}, byte-different {len(self.different)}, "
            f"ledger difference {len(self.ledger)}"
        )

    def gap_s(self, share: float) -> float:
        """What that share of the answers that moved did not exceed; 0 where none has moved."""
        ordered = sorted(self.gaps_s)
        return ordered[ceil(share * len(ordered)) - 1] if ordered else 0.0

    def details(self) -> str:
        kinds = ("lost", "duplicated", "different", "ledger")
        return "\n".join(f"{kind}: {each}" for kind in kinds for each in getattr(self, kind))


def judge(
    calls: Sequence[Call],
    answers: Mapping[Hashable, Answer],
    rows: Iterable[Row],
    *,
    may_cut: bool = False,
    innocent: frozenset[str] = frozenset({"not_enqueued"}),
) -> Verdict:
    """`may_cut`: API processes were killed, and with them their clients' connections.

    innocent: how requests may have ended of which no client heard more than a refusal.
    """
    by_id = {row.request_id: row for row in rows}
    ok = [call for call in calls if call.outcome is Outcome.OK]
    verdict = Verdict(
        num_calls=len(calls),
        num_ok=len(ok),
        refused=Counter(call.why for call in calls if call.outcome is Outcome.REFUSED),
        num_cut=sum(call.outcome is Outcome.CUT for call in calls),
        gaps_s=[each.longest_gap_s for each in ok if _epoch(by_id.get(each.request_id or "")) > 1],
    )
    known = Counter(call.request_id for call in calls if call.request_id is not None)
    verdict.duplicated += [f"{one} answered {n} calls" for one, n in known.items() if n > 1]
    for call in calls:
        _judge_call(verdict, call, answers[call.asked], may_cut)
        if call.request_id is not None:
            _judge_row_of(verdict, call, by_id.get(call.request_id))
    for row in by_id.values():
        _judge_row(verdict, row)
        if row.request_id not in known and row.finals and row.finals[0][0] not in innocent:
            verdict.ledger.append(f"{row.request_id} nobody heard of: {row.finals[0]}")
    return verdict


def _judge_call(verdict: Verdict, call: Call, answer: Answer, may_cut: bool) -> None:
    name = f"{call.request_id or call.asked} ({call.outcome} {call.why})"
    if call.outcome is Outcome.FAILED or (call.outcome is Outcome.CUT and not may_cut):
        verdict.lost.append(name)
    if call.num_ends > 1 or len(call.finish_reasons) > 1:
        verdict.duplicated.append(f"{name} ended {call.num_ends} times")
    if call.outcome is Outcome.OK:
        heard = Answer(call.text, call.num_tokens or 0, "".join(call.finish_reasons))
        if heard != answer:
            verdict.different.append(f"{name}: {heard} for {answer}")
    elif not answer.text.startswith(call.text.removesuffix("\N{REPLACEMENT CHARACTER}")):
        verdict.different.append(f"{name}: {call.text!r} does not begin {answer.text!r}")


def _judge_row_of(verdict: Verdict, call: Call, row: Row | None) -> None:
    if row is None:
        verdict.ledger.append(f"{call.request_id} is in no row")
    elif call.outcome is Outcome.OK and row.finals:
        reason, num_tokens, _ = row.finals[0]
        if (reason, num_tokens) != (call.finish_reasons[-1], call.num_tokens):
            verdict.ledger.append(
                f"{call.request_id}: {reason} after {num_tokens} in the ledger, "
                f"{call.finish_reasons[-1]} after {call.num_tokens} at the client"
            )


def _judge_row(verdict: Verdict, row: Row) -> None:
    if row.state != "ended" or not row.finals:
        verdict.lost.append(f"{row.request_id} was accepted and has not ended")
    if len(row.finals) > 1:
        verdict.duplicated.append(f"{row.request_id} ended {len(row.finals)} times")


def _epoch(row: Row | None) -> int:
    return row.finals[0][2] if row is not None and row.finals else 0
