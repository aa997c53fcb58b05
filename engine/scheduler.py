"""Which sequences run in the next step, and how many tokens of each. Holds no tensors.

There is no prefill or decode phase: a step is one map `{sequence: num_tokens}`. Running sequences
come first, in order of arrival; then waiting ones are admitted. A waiting sequence whose adapter
is not ready is skipped, never waited for. When pages run out, the newest sequence is preempted and
recomputed later. Source: iteration-level scheduling (Orca, Yu et al. 2022), chunked prefill
(Sarathi, Agrawal et al. 2023), preemption by recompute (vLLM, Kwon et al. 2023).

Invariant: the oldest sequence always makes progress, since everything else can be preempted or
evicted for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from engine.config import EngineConfig
from engine.messages import EngineError, FinishReason
from engine.page_pool import PagePool
from engine.residency import AdapterKey, LoadResult, Residency, adapter_key
from engine.sequence import Sequence

Step = dict[Sequence, int]
"""How many tokens of each sequence the next forward pass computes."""


class Scheduler:
    """Waiting and running sequences of one engine."""

    def __init__(
        self, config: EngineConfig, max_model_len: int, pool: PagePool, residency: Residency
    ) -> None:
        self._config = config
        self._max_model_len = max_model_len
        self._pool = pool
        self._residency = residency
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._failed: list[tuple[Sequence, EngineError]] = []

    @property
    def num_sequences(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def can_admit(self) -> bool:
        """Whether some waiting sequence is not held up by the loading of its adapter."""
        return bool(self._failed) or not all(map(self._is_loading, self._waiting))

    def add(self, sequence: Sequence) -> EngineError | None:
        """Queue a sequence; an error where it could never run here."""
        error = self._never_fits(sequence)
        if error is None:
            self._waiting.append(sequence)
            if sequence.adapter is not None:
                self._residency.request(sequence.adapter)
        return error

    def abort(self, request_id: str) -> Sequence | None:
        """Drop a request wherever it is, and free what it holds."""
        for sequence in [*self._running, *self._waiting]:
            if sequence.request_id == request_id:
                self._drop(sequence)
                self._forget_unwanted_adapters()
                return sequence
        return None

    def complete_load(self, result: LoadResult) -> None:
        """An adapter arrived, or failed: then exactly the requests for it fail."""
        self._residency.complete(result)
        for sequence in self._waiting_for(adapter_key(result.ref)):
            error = result.error or self._never_fits(sequence)
            if error is not None:
                self._waiting.remove(sequence)
                self._failed.append((sequence, error))
        self._forget_unwanted_adapters()

    def take_failed(self) -> list[tuple[Sequence, EngineError]]:
        failed, self._failed = self._failed, []
        return failed

    def schedule(self) -> Step:
        step: Step = {}
        budget = self._config.max_num_batched_tokens
        budget, preempted = self._schedule_running(step, budget)
        if not preempted:
            self._admit_waiting(step, budget)
        return step

    def update(self, step: Step, sampled: Mapping[Sequence, int]) -> list[Sequence]:
        """Book a finished forward pass; returns the sequences that got a token."""
        for sequence, num_tokens in step.items():
            sequence.num_computed_tokens += num_tokens
        for sequence, token_id in sampled.items():
            sequence.append(token_id, self._max_model_len)
            if sequence.finish_reason is not None:
                self._drop(sequence)
        return list(sampled)

    def fail(self, sequence: Sequence) -> None:
        """Take a sequence out after an error in its step."""
        sequence.finish_reason = FinishReason.ERROR
        self._drop(sequence)

    def check_integrity(self) -> None:
        """Assert that pages, sequences and adapters agree on who owns what."""
        self._pool.check_integrity(self._owners())
        for sequence in self._running:
            covered = len(sequence.block_table) * self._config.block_size
            assert covered >= sequence.num_computed_tokens, "a computed token has no page"
        assert all(not sequence.block_table for sequence in self._waiting)

    def _schedule_running(self, step: Step, budget: int) -> tuple[int, bool]:
        preempted = False
        for sequence in list(self._running):
            if budget == 0:
                break
            if sequence not in self._running:  # preempted for an older one
                continue
            num_tokens = min(sequence.num_uncomputed_tokens, budget)
            while not self._reserve(sequence, num_tokens):
                preempted = True
                victim = self._running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                step[sequence] = num_tokens
                budget -= num_tokens
        return budget, preempted

    def _admit_waiting(self, step: Step, budget: int) -> None:
        for sequence in list(self._waiting):
            if budget == 0 or len(self._running) >= self._config.max_num_seqs:
                return
            if self._is_loading(sequence):
                continue
            num_tokens = min(sequence.num_uncomputed_tokens, budget)
            # NOTE: no younger sequence overtakes one that waits for pages, so none starves.
            if not self._can_start(sequence) or not self._reserve(sequence, num_tokens):
                return
            self._start(sequence)
            step[sequence] = num_tokens
            budget -= num_tokens

    def _is_loading(self, sequence: Sequence) -> bool:
        """Also begins the load, should the adapter have been evicted while its request waited."""
        if sequence.adapter is None:
            return False
        self._residency.request(sequence.adapter)
        return self._residency.is_loading(sequence.adapter)

    def _can_start(self, sequence: Sequence) -> bool:
        return sequence.adapter is None or self._residency.make_ready(sequence.adapter)

    def _start(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)
        if sequence.adapter is not None:
            self._residency.acquire(sequence.adapter)
        self._running.append(sequence)
        self._running.sort(key=lambda each: each.arrival)

    def _preempt(self, sequence: Sequence) -> None:
        """Give its pages back and recompute it later; the tokens it has stay."""
        self._leave(sequence)
        sequence.num_computed_tokens = 0
        self._waiting.append(sequence)
        self._waiting.sort(key=lambda each: each.arrival)

    def _leave(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._pool.free(sequence.block_table, sequence.request_id)
        sequence.block_table = []
        if sequence.adapter is not None:
            self._residency.release(sequence.adapter)

    def _drop(self, sequence: Sequence) -> None:
        if sequence in self._running:
            self._leave(sequence)
        else:
            self._waiting.remove(sequence)

    def _reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Pages for the next `num_tokens`, evicting idle adapters where needed."""
        needed = self._num_blocks(sequence.num_computed_tokens + num_tokens)
        missing = needed - len(sequence.block_table)
        if missing > 0:
            own = [adapter_key(sequence.adapter)] if sequence.adapter is not None else []
            if not self._residency.make_room(missing, own):
                return False
            sequence.block_table += self._pool.allocate(missing, sequence.request_id)
        return True

    def _never_fits(self, sequence: Sequence) -> EngineError | None:
        adapter_pages = (
            self._residency.num_pages_of(sequence.adapter) if sequence.adapter is not None else 0
        )
        num_blocks = self._num_blocks(min(sequence.max_num_tokens, self._max_model_len))
        if adapter_pages + num_blocks <= self._pool.num_pages:
            return None
        return EngineError(
            code="request_too_large",
            message=(
                f"The request needs {num_blocks} pages for its tokens and {adapter_pages} for its "
                f"adapter; this engine has {self._pool.num_pages}."
            ),
        )

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._config.block_size)

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
        for sequence in self._running:
            yield sequence.request_id, sequence.block_table
