"""Which sequences run in the next step, and how many tokens of each. Holds no tensors.

There is no prefill or decode phase: a step is one map `{sequence: num_tokens}`. Sequences that
decode come first; then prompts, of running and of waiting sequences, the least-served tenant's
first (`engine/fair_order.py`). A waiting sequence whose adapter is not ready is skipped, never
waited for. When pages run out, the most over-served tenant's newest sequence is preempted: it goes
on later, from pages on the host or by computing again (`engine/swapping.py`). Source:
iteration-level scheduling (Orca, Yu et al. 2022), chunked prefill
(Sarathi, Agrawal et al. 2023), preemption by recompute (vLLM, Kwon et al. 2023).

A step may be scheduled while the one before it is in flight: the tokens of that one have
placeholders then. What ends by length is known ahead; what ends by a stop token is learnt one step
late, and the token computed in excess is dropped.

Invariants: the least-served tenant's oldest sequence always makes progress, since everything else
can be preempted or evicted for it; pages and adapters that a step in flight uses stay until it has
landed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator

import structlog

from engine.adapter_key import AdapterKey, adapter_key
from engine.config import EngineConfig
from engine.fair_order import FairOrder
from engine.holdings import Holdings
from engine.messages import EngineError, FinishReason
from engine.page_pool import PagePool
from engine.policy import choose_victim
from engine.prefix_cache import PrefixCache
from engine.residency import LoadResult, Residency
from engine.sequence import Sequence
from engine.step_draft import StepDraft
from engine.swapping import Swapping

log = structlog.get_logger()

Step = dict[Sequence, int]
"""How many tokens of each sequence the next forward pass computes."""


class Scheduler:
    """Waiting and running sequences of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        pool: PagePool,
        residency: Residency,
        cache: PrefixCache,
        holdings: Holdings,
        swapping: Swapping,
        order: FairOrder,
    ) -> None:
        self._config = config
        self._block_size = config.block_size
        self._pool = pool
        self._residency = residency
        self._cache = cache
        self._holdings = holdings
        self._swapping = swapping
        self._waiting = order
        self._running: dict[Sequence, None] = {}
        """In order of admission."""
        self._uncharged: list[str] = []
        """Tenants whose sequences got a token that is not charged yet."""
        self._leaving: list[Sequence] = []
        """Ended or aborted, with their pages: a step in flight still uses them."""
        self._failed: list[tuple[Sequence, EngineError]] = []

    @property
    def num_sequences(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def service_spread(self) -> float:
        """How far from fair the order of those who wait is: `FairOrder.spread`."""
        return self._waiting.spread()

    @property
    def num_available_pages(self) -> int:
        """Free now, or as soon as they are wanted."""
        return self._holdings.room.num_available_pages

    @property
    def num_loading(self) -> int:
        """Waiting sequences whose adapter is not on this machine yet."""
        return sum(map(self._is_loading, self._waiting)) if self._residency.awaits_any else 0

    @property
    def has_runnable(self) -> bool:
        """Whether anything runs, or waits for something else than its adapter."""
        return bool(self._running) or not all(map(self._is_loading, self._waiting))

    def add(self, sequence: Sequence) -> EngineError | None:
        """Queue a sequence; an error where it could never run here."""
        self._request_adapter(sequence)  # first: the host may know how large it is
        error = self._holdings.never_fits(sequence)
        if error is None:
            self._waiting.push(sequence)
        else:
            self._forget_unwanted_adapters()
        return error

    def abort(self, request_id: str, epoch: int) -> bool:
        """Drop a request wherever it is, and free what it holds. False where it is not here."""
        for sequence in [*self._running, *self._waiting]:
            if (sequence.request_id, sequence.request.epoch) == (request_id, epoch):
                self._end(sequence, FinishReason.ABORT)
                self._forget_unwanted_adapters()
                return True
        return False

    def sequences_on(self, key: AdapterKey) -> list[Sequence]:
        """The sequences that run on an adapter or wait for it; none that has ended."""
        return [
            each
            for each in (*self._running, *self._waiting)
            if each.adapter is not None and adapter_key(each.adapter) == key
        ]

    def complete_load(self, result: LoadResult) -> None:
        """An adapter arrived, or failed: then exactly the requests for it fail."""
        self._residency.complete(result)
        for sequence in self._waiting_for(adapter_key(result.ref)):
            self._waiting.clock_load(sequence)
            error = result.error or self._holdings.never_fits(sequence)
            if error is not None:
                self._waiting.remove(sequence)
                self._swapping.forget(sequence)
                self._failed.append((sequence, error))
        self._forget_unwanted_adapters()

    def take_failed(self) -> list[tuple[Sequence, EngineError]]:
        failed, self._failed = self._failed, []
        return failed

    def schedule(self) -> Step:
        """The next step; empty where nothing can run before the step in flight has landed."""
        self._swapping.land()
        self._charge()
        draft = StepDraft({}, self._config.max_num_batched_tokens)
        # No prompt, however long, makes a stream wait.
        prompts = self._compute_streams(draft)
        self._compute_prompts(draft, deque(sorted(prompts, key=self._waiting.turn)))
        self._look_ahead()
        return {} if draft.is_stuck else draft.step

    def launch(self, step: Step, sampling: Iterable[Sequence]) -> None:
        """Book a step that now runs: what follows it can be scheduled before its tokens are known.

        Row i of the ids that it samples will be those of the i-th sequence of `sampling`.
        """
        for sequence, num_tokens in step.items():
            sequence.num_computed_tokens += num_tokens
            sequence.num_in_flight += 1
            sequence.num_tokens_in_flight += num_tokens
        for row, sequence in enumerate(sampling):  # their placeholders
            sequence.token_ids.append(-1 - row)
            sequence.num_placeholders += 1

    def land(self, step: Step, *, is_well: bool = True) -> None:
        """A launched step is over, well or not: what only it used is free.

        The blocks that it filled can be shared from now on, where all is well.
        """
        block_size = self._block_size
        for sequence, num_tokens in step.items():
            sequence.num_in_flight -= 1
            sequence.num_tokens_in_flight -= num_tokens
            if not is_well:
                self._holdings.distrust(sequence)
            elif sequence.num_computed_tokens // block_size > sequence.num_known_blocks:
                self._publish(sequence)  # a block may be full that nobody was told of
        for sequence in [each for each in self._leaving if each.num_in_flight == 0]:
            self._leaving.remove(sequence)
            self._holdings.release(sequence)

    def update(self, sequence: Sequence, token_id: int) -> bool:
        """Book a token of a step that landed. False where its sequence has ended since, and the
        token is dropped."""
        if sequence.finish_reason is not None:
            return False
        self._uncharged.append(sequence.request.tenant_id)
        sequence.resolve(token_id)
        if sequence.finish_reason is not None:
            self._end(sequence, sequence.finish_reason)
        return True

    def fail(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Take out sequences of a step that broke; returns those that had not ended yet."""
        live = [sequence for sequence in sequences if not sequence.is_finished]
        for sequence in live:
            self._end(sequence, FinishReason.ERROR)
        return live

    def check_integrity(self) -> None:
        """Assert that pages, sequences and adapters agree on who owns what."""
        self._pool.check_integrity(self._owners(), self._cache.cold_pages())
        self._residency.check_integrity()
        self._cache.check_integrity(each.owner for each in (*self._running, *self._leaving))
        self._swapping.check_integrity(list(self._waiting))
        for sequence in self._running:
            self._holdings.check_integrity(sequence)
        for sequence in self._waiting:
            assert not sequence.block_table and not sequence.num_in_flight, "it holds pages"
            assert not sequence.num_placeholders, "a token that nothing will compute"
        for sequence in self._leaving:
            assert sequence.is_finished and sequence.num_in_flight, "it could have left"

    def _charge(self) -> None:
        """For the tokens of steps that landed since the last schedule."""
        self._waiting.charge_generated(self._uncharged)
        self._uncharged.clear()

    def _compute_streams(self, draft: StepDraft) -> list[Sequence]:
        """Give its token to every running sequence that decodes; returns those with a prompt.

        Whoever has a page for its token comes first, so that most take no more than a look.
        """
        step: Step = draft.step
        prompts, others = [], []
        for sequence in self._running:
            is_able = sequence.is_in_place and sequence.num_placeholders == 0
            if not is_able and not self._can_compute(sequence):
                continue
            num_computed_tokens = sequence.num_computed_tokens
            if len(sequence.token_ids) - num_computed_tokens > 1:
                prompts.append(sequence)
            elif (
                num_computed_tokens < len(sequence.block_table) * self._block_size
                and len(step) < draft.budget
            ):
                step[sequence] = 1
            else:
                others.append(sequence)
        draft.budget -= len(step)
        for sequence in others:
            self._compute(draft, sequence)
        return prompts

    def _compute(self, draft: StepDraft, sequence: Sequence) -> None:
        """Give a running sequence its tokens, and preempt others where its pages are lacking."""
        if draft.is_full or sequence not in self._running:
            return  # `not in`: preempted for another one
        num_tokens = min(sequence.num_uncomputed_tokens, draft.budget)
        while not self._holdings.extend(sequence, num_tokens):
            draft.is_short = True
            if self._holdings.has_room_coming(sequence, num_tokens):
                return
            if self._has_step_in_flight:
                # Landing may free pages; what is in flight cannot be preempted anyway.
                draft.is_stuck = True
                return
            victim = choose_victim(self._running, self._waiting.service)
            if self._swapping.is_moving(victim):
                return  # it has just come back, and may go when it is here
            draft.take_back(victim)
            self._preempt(victim)
            if victim is sequence:
                return
        draft.give(sequence, num_tokens)

    def _compute_prompts(self, draft: StepDraft, under_way: deque[Sequence]) -> None:
        """Go on with prompts and admit waiting sequences, whoever's turn it is."""
        if self._can_admit(draft):
            for sequence in self._waiting.in_turn(self._is_ready):
                while under_way and self._waiting.comes_before(under_way[0], sequence):
                    self._compute(draft, under_way.popleft())
                if not self._can_admit(draft):
                    break
                # What was computed before it may have taken the pages of its idle adapter.
                if self._is_ready(sequence):
                    self._admit(draft, sequence)
        for sequence in under_way:
            self._compute(draft, sequence)

    def _can_admit(self, draft: StepDraft) -> bool:
        has_seat = len(self._running) < self._config.max_num_seqs
        return has_seat and not draft.is_full and not draft.is_short

    def _admit(self, draft: StepDraft, sequence: Sequence) -> None:
        """Let a waiting sequence run, if there is room for what it needs first."""
        adapter = sequence.adapter
        load = self._residency.num_missing_pages(adapter) if adapter is not None else 0
        if not self._holdings.acquire(sequence, draft.budget):
            return
        self._waiting.admit(sequence, load * self._block_size)
        self._running[sequence] = None
        if self._can_compute(sequence):
            draft.give(sequence, min(sequence.num_uncomputed_tokens, draft.budget))

    def _is_ready(self, sequence: Sequence) -> bool:
        """False while its adapter or its pages are on their way, or another one fills a block that
        it needs."""
        self._request_adapter(sequence)
        if self._is_loading(sequence) or self._swapping.is_moving(sequence):
            return False
        return not self._holdings.awaits_prefix(sequence)

    def _publish(self, sequence: Sequence) -> None:
        try:
            self._holdings.publish(sequence)
        except Exception:  # the edge of a row: it goes on, and shares nothing
            log.exception("row_failed", at="publish", request_id=sequence.request_id)
            self._holdings.distrust(sequence)

    def _request_adapter(self, sequence: Sequence) -> None:
        """It may have been evicted while its request waited."""
        if sequence.adapter is not None:
            self._residency.request(sequence.adapter)

    def _look_ahead(self) -> None:
        """Have the adapters of those who wait fetched, whoever's turn it will be."""
        if self._residency.wants_look_ahead:
            waiting = sorted(self._waiting, key=self._waiting.turn)
            self._residency.look_ahead([each.adapter for each in waiting if each.adapter])

    def _is_loading(self, sequence: Sequence) -> bool:
        return sequence.adapter is not None and self._residency.is_loading(sequence.adapter)

    def _can_compute(self, sequence: Sequence) -> bool:
        """False while its pages or its adapter's are being filled, or its last token is in
        flight."""
        if not sequence.is_in_place:
            if self._swapping.is_moving(sequence):
                return False
            if sequence.weights is not None and not sequence.weights.is_installed:
                return False
            sequence.is_in_place = True
        return sequence.num_placeholders == 0 or len(sequence.token_ids) < sequence.max_num_tokens

    @property
    def _has_step_in_flight(self) -> bool:
        return any(sequence.num_in_flight for sequence in (*self._running, *self._leaving))

    def _preempt(self, sequence: Sequence) -> None:
        """Let it wait again, without its pages; the tokens it has stay."""
        del self._running[sequence]
        self._waiting.suspend(sequence)
        self._holdings.suspend(sequence)
        self._waiting.push(sequence)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Take a sequence out; what a step in flight uses of it stays until that has landed."""
        sequence.finish_reason = reason
        if sequence not in self._running:
            self._waiting.remove(sequence)
            self._swapping.forget(sequence)
            return
        if reason is FinishReason.ERROR:
            self._holdings.distrust(sequence)
        del self._running[sequence]
        self._waiting.suspend(sequence)
        if sequence.num_in_flight > 0:
            self._leaving.append(sequence)
        else:
            self._holdings.release(sequence)

    def _forget_unwanted_adapters(self) -> None:
        wanted = [sequence.adapter for sequence in self._waiting if sequence.adapter is not None]
        self._residency.forget_unwanted({adapter_key(ref) for ref in wanted})

    def _waiting_for(self, key: AdapterKey) -> list[Sequence]:
        return [
            sequence
            for sequence in self._waiting
            if sequence.adapter is not None and adapter_key(sequence.adapter) == key
        ]

    def _owners(self) -> Iterator[tuple[Hashable, list[int]]]:
        yield from self._residency.owners()
        yield from self._swapping.owners()
        for sequence in (*self._running, *self._leaving):
            yield sequence.owner, sequence.block_table
