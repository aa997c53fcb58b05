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
    def num_loading(self) -> int:
        """Waiting sequences whose adapter is not on this machine yet."""
        return sum(map(self._is_loading, self._waiting))

    def add(self, sequence: Sequence) -> EngineError | None:
        """Queue a sequence; an error where it could never run here."""
        error = self._never_fits(sequence)
        if error is None:
            self._waiting.append(sequence)
            if sequence.adapter is not None:
                self._residency.request(sequence.adapter)
        return error

    def abort(self, request_id: str, epoch: int) -> bool:
        """Drop a request wherever it is, and free what it holds. False where it is not here."""
        for sequence in [*self._running, *self._waiting]:
            if (sequence.request_id, sequence.request.epoch) == (request_id, epoch):
                self._drop(sequence)
                self._forget_unwanted_adapters()
                return True
        return False

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
        budget, has_preempted = self._schedule_running(step, budget)
        if not has_preempted:
            self._admit_waiting(step, budget)
        return step

    def update(self, step: Step, sampled: Mapping[Sequence, int]) -> list[Sequence]:
        """Book a finished forward pass; returns the sequences that got a token."""
        for sequence, num_tokens in step.items():
            sequence.num_computed_tokens += num_tokens
        for sequence, token_id in sampled.items():
            sequence.append(token_id, self._max_num_tokens(sequence))
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
        """Give running sequences their tokens: (budget left, whether one was preempted).

        Sequences that decode come before those with a prompt to compute, so that no prompt,
        however long, makes a stream wait.
        """
        has_preempted = False
        for sequence in sorted(self._running, key=lambda each: each.num_uncomputed_tokens > 1):
            if budget == 0:
                break
            if sequence not in self._running:  # preempted for an older one
                continue
            num_tokens = min(sequence.num_uncomputed_tokens, budget)
            while not self._reserve(sequence, num_tokens):
                has_preempted = True
                victim = self._running[-1]
                budget += step.pop(victim, 0)
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                step[sequence] = num_tokens
                budget -= num_tokens
        return budget, has_preempted

    def _admit_waiting(self, step: Step, budget: int) -> None:
        for sequence in list(self._waiting):
            if budget == 0 or len(self._running) >= self._config.max_num_seqs:
                return
            self._request_adapter(sequence)
            if self._is_loading(sequence):
                continue
            num_tokens = min(sequence.num_uncomputed_tokens, budget)
            # NOTE: no younger sequence overtakes one that waits for pages, so none starves.
            if not self._start(sequence, num_tokens):
                return
            step[sequence] = num_tokens
            budget -= num_tokens

    def _request_adapter(self, sequence: Sequence) -> None:
        """It may have been evicted while its request waited."""
        if sequence.adapter is not None:
            self._residency.request(sequence.adapter)

    def _is_loading(self, sequence: Sequence) -> bool:
        return sequence.adapter is not None and self._residency.is_loading(sequence.adapter)

    def _start(self, sequence: Sequence, num_tokens: int) -> bool:
        """Let a waiting sequence run, if its adapter and its first tokens both get their pages."""
        needed, adapter = self._num_blocks(num_tokens), sequence.adapter
        if adapter is not None:
            needed += self._residency.num_missing_pages(adapter)
        if not self._residency.make_room(needed, keep=adapter):
            return False
        if adapter is not None:
            self._residency.acquire(adapter)
        num_blocks = self._num_blocks(num_tokens)
        sequence.block_table = self._pool.allocate(num_blocks, sequence.request_id)
        self._waiting.remove(sequence)
        self._running.append(sequence)
        self._running.sort(key=lambda each: each.arrival)
        return True

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
            if not self._residency.make_room(missing):
                return False
            sequence.block_table += self._pool.allocate(missing, sequence.request_id)
        return True

    def _never_fits(self, sequence: Sequence) -> EngineError | None:
        """Alone in the pool, there must be room for the adapter and for one more token."""
        room = self._max_num_tokens(sequence)
        if sequence.num_tokens < room:
            return None
        message = f"The prompt has {sequence.num_tokens} tokens; this engine has room for {room}"
        if sequence.adapter is not None:
            message += " beside the adapter"
        return EngineError(code="request_too_large", message=f"{message}.")

    def _max_num_tokens(self, sequence: Sequence) -> int:
        """Where a sequence ends at the latest: the model's context, or all pages but its own
        adapter's."""
        num_pages = self._pool.num_pages
        if sequence.adapter is not None:
            num_pages -= self._residency.num_pages_of(sequence.adapter)
        return min(self._max_model_len, max(0, num_pages) * self._config.block_size)

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
