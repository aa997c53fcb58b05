"""What the ledger says of a request after everything that was said about it, in any order.

Pure: knows nothing of Redis or Postgres. Invariant: `merge` is commutative, associative and
idempotent, so records may come late, twice, or in any order; the row is the same in the end.

Two questions are settled apart. How much was used: the latest epoch says, and within it the
greatest count; an engine that lost its lease says nothing. How it ended: who knows best says. The
API process tells what the client was told; an engine's `stop` or `length` beats a sweeper that
came too early; and the sweeper beats an engine that only stopped working for nobody. How much of it
was reasoning goes with how much it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from engine.messages import API_LOST, FinishReason, UsageAuthor, UsageRecord

Event = Literal["checkpoint", "final"]
EntryKey = tuple[str, str, str]

_NATURAL = (FinishReason.STOP.value, FinishReason.LENGTH.value)
_FOR_NOBODY = (FinishReason.ABORT.value, API_LOST)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the ledger; its fields are the row's columns."""

    tenant_id: str
    request_id: str
    event: Event
    epoch: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    adapter_digest: str | None
    engine_id: str | None
    queue_ms: int | None
    finish_reason: str | None
    reason_rank: int
    reason_epoch: int
    num_reasoning_tokens: int = 0
    adapter_load_ms: int | None = None

    @property
    def key(self) -> EntryKey:
        """What is written once."""
        return self.tenant_id, self.request_id, self.event

    @property
    def ends_request(self) -> bool:
        """Whether the request is over with it.

        An engine that stops for nobody is no proof: where Redis lost its data, or the request moved
        on, its API process still has it. That one says how it ends, or the sweeper once it is dead.
        """
        is_hearsay = self.reason_rank == 0 and self.finish_reason in _FOR_NOBODY
        return self.event == "final" and not is_hearsay


def entry_of(record: UsageRecord) -> Entry:
    return Entry(
        tenant_id=record.tenant_id,
        request_id=record.request_id,
        event="checkpoint" if record.finish_reason is None else "final",
        epoch=record.epoch,
        num_prompt_tokens=record.num_prompt_tokens,
        num_cached_tokens=record.num_cached_tokens,
        num_generated_tokens=record.num_generated_tokens,
        adapter_digest=record.adapter_digest,
        engine_id=record.engine_id,
        queue_ms=record.queue_ms,
        finish_reason=record.finish_reason,
        reason_rank=_rank(record),
        reason_epoch=record.epoch,
        num_reasoning_tokens=record.num_reasoning_tokens,
        adapter_load_ms=record.adapter_load_ms,
    )


def merge(left: Entry, right: Entry) -> Entry:
    """The row that both make together. They have one key."""
    assert left.key == right.key, "two rows are not one"
    counts = max(left, right, key=_usage_order)
    reason = max(left, right, key=_reason_order)
    return replace(
        counts,
        finish_reason=reason.finish_reason,
        reason_rank=reason.reason_rank,
        reason_epoch=reason.reason_epoch,
    )


def merge_all(entries: Iterable[Entry]) -> dict[EntryKey, Entry]:
    """One entry per key."""
    merged: dict[EntryKey, Entry] = {}
    for entry in entries:
        held = merged.get(entry.key)
        merged[entry.key] = entry if held is None else merge(held, entry)
    return merged


def _usage_order(entry: Entry) -> tuple[int, int, int, int, int, int, int, str, str]:
    # Past the counts nothing is better; a total order makes equal counts merge one way only.
    return (
        entry.epoch,
        entry.num_generated_tokens,
        entry.num_reasoning_tokens,
        entry.num_cached_tokens,
        entry.num_prompt_tokens,
        -1 if entry.queue_ms is None else entry.queue_ms,
        -1 if entry.adapter_load_ms is None else entry.adapter_load_ms,
        entry.engine_id or "",
        entry.adapter_digest or "",
    )


def _reason_order(entry: Entry) -> tuple[int, int, str]:
    return entry.reason_rank, entry.reason_epoch, entry.finish_reason or ""


def _rank(record: UsageRecord) -> int:
    match record.author:
        case UsageAuthor.API:
            return 3
        case UsageAuthor.ENGINE if record.finish_reason in _NATURAL:
            return 2
        case UsageAuthor.SWEEPER:
            return 1
        case _:
            return 0
