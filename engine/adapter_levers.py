"""Operators' levers on one engine's adapters: preload, pin, evict, let go; and how each stands.

Belongs to the step loop's thread, but for `report`. Holds no tensors, and nothing here reads or
waits. Invariants: every command is answered exactly once, with what came of it; pinned adapters
take at most half of the pool, so that no request is kept out by pins; an adapter that was let go
has no sequence, no page and no place on the host when that is said.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

import structlog

from engine.adapter_entries import State
from engine.adapter_key import AdapterKey, adapter_key
from engine.eviction import Room
from engine.messages import (
    AdapterAck,
    AdapterCommand,
    AdapterRef,
    AdapterReport,
    EngineError,
    Lever,
    Outcome,
    ResidencyState,
)
from engine.page_pool import PagePool
from engine.residency import LoadResult, Residency, Standing
from engine.sequence import Sequence
from engine.transport.certificates import UNCERTIFIED

log = structlog.get_logger()

PRELOAD_TIMEOUT_S = 60.0
MAX_FAILURES = 256  # adapters of which it is remembered that they could not be loaded
SECONDS_PER_REPORT = 0.0005  # thousands of adapters are looked at once a second
SECONDS_PER_LOOK = 5.0  # so often it is looked for what was used
SECONDS_PER_USE = 60.0  # so often it is told anew of one adapter that it was

DELETED = EngineError(code="adapter_deleted", message="The adapter has been deleted.")
NO_ROOM = EngineError(code="no_room", message="Running requests hold all pages.")
TOO_LARGE = EngineError(code="adapter_too_large", message="The adapter is larger than the pool.")
TOO_MANY_PINS = EngineError(
    code="pin_refused", message="Pinned adapters may take half of the engine's pages at most."
)

_STATES = {
    State.QUEUED: ResidencyState.PENDING,
    State.KEPT: ResidencyState.PENDING,
    State.LOADING: ResidencyState.LOADING,
    State.LOADED: ResidencyState.LOADING,
    State.READY: ResidencyState.READY,
}


@dataclass(slots=True)
class _Pending:
    """A command that is not done yet. `num_aborted`: sequences that were ended for it."""

    command: AdapterCommand
    give_up_at: float
    num_aborted: int = 0

    @property
    def key(self) -> AdapterKey:
        return adapter_key(self.command.adapter)


class AdapterLevers:
    """`take` a command; before each step fail what is `doomed`, then `settle`; `take_acks`."""

    def __init__(
        self,
        engine_id: str,
        residency: Residency,
        room: Room,
        pool: PagePool,
        sequences_on: Callable[[AdapterKey], Many[Sequence]],
        *,
        admits: Callable[[AdapterRef], bool] = lambda ref: True,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """admits: as in `EngineCore`. now: since 1970, for pins that end and for reports."""
        self._admits = admits
        self._engine_id = engine_id
        self._residency = residency
        self._room = room
        self._pool = pool
        self._sequences_on = sequences_on
        self._clock = clock
        self._now = now
        self._pending: dict[str, _Pending] = {}
        self._acks: list[AdapterAck] = []
        self._failures: dict[AdapterKey, EngineError] = {}
        self._num_changes = 0
        self._reported: Mapping[AdapterKey, AdapterReport] = {}
        self._reported_at = (0, 0)
        self._built_at = -math.inf
        self._num_uses = 0
        self._uses: dict[AdapterKey, tuple[int, int]] = {}
        """(generation, num_uses) of each adapter, when it was told last that it was used."""

    def take(self, command: AdapterCommand) -> None:
        """Begin with a command; one that is under way already goes on."""
        if command.command_id in self._pending:
            return
        if command.lever is Lever.EVICT:
            self._ack(command, self._evict(command))
            self._num_changes += 1
            return
        if command.lever is not Lever.LET_GO and not self._admits(command.adapter):
            self._ack(command, Outcome.FAILED, UNCERTIFIED)
            return
        pending = _Pending(command, self._clock() + PRELOAD_TIMEOUT_S)
        self._pending[command.command_id] = pending
        if command.lever is not Lever.LET_GO:
            self._failures.pop(pending.key, None)
            self._residency.preload(command.adapter)
        self._num_changes += 1

    def observe(self, result: LoadResult) -> None:
        """What the loader made of an adapter, before it is forgotten that it was wanted."""
        key = adapter_key(result.ref)
        self._failures.pop(key, None)
        if result.error is None:
            return
        while len(self._failures) >= MAX_FAILURES:
            del self._failures[next(iter(self._failures))]
        self._failures[key] = result.error
        self._num_changes += 1
        for pending in self._preloads():
            if pending.key == key:
                self._finish(pending, Outcome.FAILED, result.error)

    def doomed(self) -> list[Sequence]:
        """The sequences that run on what is to be let go, or wait for it: each once."""
        found: list[Sequence] = []
        for pending in self._pending.values():
            if pending.command.lever is Lever.LET_GO:
                sequences = self._sequences_on(pending.key)
                pending.num_aborted += len(sequences)
                found += [each for each in sequences if each not in found]
        return found

    def settle(self) -> None:
        """Do what can be done now. Cheap while there is nothing to do."""
        if self._residency.pins:
            self._unpin_expired()
        for pending in list(self._pending.values()):
            if pending.command.lever is not Lever.LET_GO:
                self._go_on_with(pending)
            elif self._residency.drop(pending.command.adapter):
                self._failures.pop(pending.key, None)
                self._finish(pending, Outcome.GONE)

    @property
    def watches_clock(self) -> bool:
        """Whether time alone may end something: a command's patience, or a pin."""
        return bool(self._pending or self._residency.pins)

    @property
    def wants_step(self) -> bool:
        """Whether something waits for a copy or a step to end, of which nobody sends word."""
        if not self._pending:
            return False
        found = [self._residency.find(each.command.adapter) for each in self._pending.values()]
        return any(each is not None and each.state is State.READY for each in found)

    def take_acks(self) -> list[AdapterAck]:
        acks, self._acks = self._acks, []
        return acks

    def report(self) -> Mapping[AdapterKey, AdapterReport]:
        """How every adapter stands; the same object as long as nothing changes.

        For the heartbeat's thread: what the step loop changes meanwhile is in the next one.
        """
        seen = (self._residency.num_changes, self._num_changes)
        age_s = self._clock() - self._built_at
        num_uses = self._residency.num_uses
        is_new = seen != self._reported_at or (
            num_uses != self._num_uses and age_s >= SECONDS_PER_LOOK
        )
        if is_new and age_s >= SECONDS_PER_REPORT * len(self._reported):
            self._built_at, self._num_uses = self._clock(), num_uses
            before, self._reported_at = self._reported, seen
            removing = {
                each.key
                for each in list(self._pending.values())
                if each.command.lever is Lever.LET_GO
            }
            standings, failures = self._residency.standings(), dict(self._failures)
            keys = {*standings, *failures, *removing}
            self._uses = {key: each for key, each in self._uses.items() if key in standings}
            self._reported = {
                key: self._report_on(
                    key,
                    standings.get(key),
                    failures.get(key),
                    is_removing=key in removing,
                    before=before.get(key),
                )
                for key in keys
            }
        return self._reported

    def _report_on(
        self,
        key: AdapterKey,
        standing: Standing | None,
        failure: EngineError | None,
        *,
        is_removing: bool,
        before: AdapterReport | None,
    ) -> AdapterReport:
        if is_removing:
            state, error = ResidencyState.REMOVING, None
        elif standing is not None:
            state, error = _STATES[standing.state], None
        else:
            state, error = ResidencyState.FAILED, failure
        generation = 0 if standing is None else standing.generation
        is_same = before is not None and (before.state, before.generation) == (state, generation)
        return AdapterReport(
            engine_id=self._engine_id,
            tenant_id=key[0],
            digest=key[1],
            state=state,
            since_s=before.since_s if before is not None and is_same else self._now(),
            num_bytes=0 if standing is None else standing.num_bytes,
            generation=generation,
            pinned_until_s=self._residency.pins.get(key),
            error=error,
            last_used_s=self._last_used(key, standing, before),
        )

    def _last_used(
        self, key: AdapterKey, standing: Standing | None, before: AdapterReport | None
    ) -> float | None:
        """What is used all the time is not told anew at each look."""
        known_s = None if before is None else before.last_used_s
        if standing is None:
            return known_s
        uses = (standing.generation, standing.num_uses)
        if not standing.is_held and (standing.num_uses == 0 or uses == self._uses.get(key)):
            return known_s
        now_s = self._now()
        if known_s is not None and now_s - known_s < SECONDS_PER_USE:
            return known_s
        self._uses[key] = uses
        return now_s

    def _preloads(self) -> list[_Pending]:
        return [each for each in self._pending.values() if each.command.lever is not Lever.LET_GO]

    def _go_on_with(self, pending: _Pending) -> None:
        """Give a preloaded adapter its pages, when it is there and there is room."""
        adapter, residency = pending.command.adapter, self._residency
        standing = residency.find(adapter)
        if standing is None or (standing.state is State.QUEUED and residency.can_load):
            residency.preload(adapter)
        elif standing.is_usable:
            self._finish_preload(pending, standing)
            return
        elif standing.state is not State.READY and not residency.is_loading(adapter):
            needed = residency.num_missing_pages(adapter)
            if needed > self._pool.num_pages:
                self._finish(pending, Outcome.FAILED, TOO_LARGE)
                return
            if self._room.make(needed, adapter.tenant_id, keep=adapter):
                residency.install(adapter)
                return
        if self._clock() >= pending.give_up_at:
            self._finish(pending, Outcome.FAILED, NO_ROOM)

    def _finish_preload(self, pending: _Pending, standing: Standing) -> None:
        command = pending.command
        if command.lever is Lever.PRELOAD:
            self._finish(pending, Outcome.READY)
            return
        others = sum(
            each.num_pages
            for key, each in self._residency.standings().items()
            if key in self._residency.pins and key != pending.key
        )
        if others + standing.num_pages > self._pool.num_pages // 2:
            self._finish(pending, Outcome.FAILED, TOO_MANY_PINS)
            return
        self._residency.pins[pending.key] = command.until_s
        self._finish(pending, Outcome.PINNED)

    def _evict(self, command: AdapterCommand) -> Outcome:
        key = adapter_key(command.adapter)
        self._residency.pins.pop(key, None)
        standing = self._residency.find(command.adapter)
        if standing is None:
            return Outcome.ABSENT
        if standing.is_held or not standing.is_usable:
            return Outcome.BUSY
        self._residency.evict(command.adapter)
        return Outcome.EVICTED

    def _unpin_expired(self) -> None:
        now = self._now()
        for key in [key for key, until in self._residency.pins.items() if until <= now]:
            del self._residency.pins[key]
            self._num_changes += 1

    def _finish(
        self, pending: _Pending, outcome: Outcome, error: EngineError | None = None
    ) -> None:
        del self._pending[pending.command.command_id]
        if not any(each.key == pending.key for each in self._preloads()):
            self._residency.preloading.discard(pending.key)
            if outcome is Outcome.FAILED and not self._sequences_on(pending.key):
                self._residency.forget(pending.command.adapter)  # or it would hold up loads
        self._num_changes += 1
        self._ack(pending.command, outcome, error, pending.num_aborted)

    def _ack(
        self,
        command: AdapterCommand,
        outcome: Outcome,
        error: EngineError | None = None,
        num_aborted: int = 0,
    ) -> None:
        log.info(
            "adapter_lever",
            lever=command.lever.value,
            digest=command.adapter.digest,
            outcome=outcome.value,
            num_aborted=num_aborted,
        )
        self._acks.append(
            AdapterAck(
                command_id=command.command_id,
                engine_id=self._engine_id,
                outcome=outcome,
                num_aborted=num_aborted,
                error=error,
            )
        )
