"""The engine: `add`, `abort`, `step`. Read this file first.

`step()` is schedule -> launch -> collect. On the CPU a step is collected as soon as it is launched.
On a GPU step n + 1 is scheduled and launched while n runs, then n is collected: the device never
waits for the scheduler, and what n samples goes into n + 1 on the device (`engine/sequence.py`
says how a token is scheduled before it is known). Tokens in, tokens out: no HTTP, no SQL, no text,
no tenant names. Synchronous and single-threaded; other threads talk to it by message
(`engine/loop.py`). Invariant: every request that was added ends in exactly one output with a
finish reason, or was aborted.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from typing import Any, Protocol

import structlog

from engine.adapter_entries import State
from engine.adapter_levers import DELETED, AdapterLevers
from engine.adapter_tier import AdapterTier
from engine.answers import Answers
from engine.block_keys import BlockHasher, BlockKeys
from engine.config import EngineConfig
from engine.fair_order import FairOrder
from engine.greedy_dual import GreedyDual
from engine.holdings import Holdings
from engine.host_tier import HostTier
from engine.messages import AdapterRef, EngineError, EngineRequest, ModuleFigure, OutputBatch
from engine.page_pool import PagePool
from engine.prefix_cache import PrefixCache
from engine.reasoning import ReasoningCount
from engine.request_check import RequestCheck
from engine.residency import LoadResult, Residency
from engine.row_failures import INTERNAL_ERROR, Outcome, RowsFailedError
from engine.scheduler import Scheduler, Step
from engine.sequence import Sequence
from engine.speeds import Speeds
from engine.step_handle import StepHandle
from engine.stopwatch import Stopwatch
from engine.swapping import PageMover, Swapping
from lora.base_spec import BaseSpec

log = structlog.get_logger()


class Runner(PageMover, Protocol):
    """Executes steps in order: computes their tokens and samples for whoever is complete."""

    @property
    def max_in_flight(self) -> int:
        """1: a step is collected before the next one is launched. 2: after, by one step.

        With 2, an input id of `-1 - row` stands for row `row` of what the step launched before
        this one sampled.
        """

    def execute(self, step: Step, residency: Residency) -> StepHandle:
        """Launch `step`; all that it needs of the sequences is read before this returns.

        Where this or the handle's `result` raises, the device is done with the step's pages. A
        step whose launch failed may be launched again, in parts too: it writes the same.

        Raises:
            RowsFailedError: some rows cannot be prepared; nothing was launched.
        """

    def poison_pages(self, pages: Many[int]) -> None:
        """For debugging: make every number in `pages` a NaN, after the steps launched so far."""


class Loader(Protocol):
    """Makes weights from an adapter's files on threads of its own."""

    def start(self, ref: AdapterRef) -> None: ...

    def take_completed(self) -> list[LoadResult]: ...

    def figures_of(self, ref: AdapterRef) -> tuple[ModuleFigure, ...] | None:
        """What was measured of an adapter that was loaded on trial; None where it was not."""


class EngineCore:
    """One base model, its page pool, and the sequences that share them."""

    def __init__(
        self,
        config: EngineConfig,
        base: BaseSpec,
        runner: Runner,
        loader: Loader,
        engine_id: str,
        *,
        clock: Callable[[], float] = time.perf_counter,
        admits: Callable[[AdapterRef], bool] = lambda ref: True,
    ) -> None:
        """clock: seconds that only grow; what speeds are measured with.

        admits: whether an adapter may be used; not asked of one that is on trial.
        """
        self._config = config
        self._clock = clock
        self._runner = runner
        self._loader = loader
        self._in_flight: deque[tuple[Step, StepHandle, float]] = deque()
        """With the time of each launch."""
        self._collected_at = -math.inf
        self._num_added = 0
        self.num_steps = 0
        self._check = RequestCheck(base, admits)
        self._reasoning_tokens = base.reasoning_token_ids
        self._answers = Answers(engine_id, lambda ref: loader.figures_of(ref))
        self.pool = PagePool(
            config.num_pages(base), runner.poison_pages if config.debug_poison_pages else None
        )
        self.speeds = Speeds(
            config.prefill_tokens_per_s, config.load_bytes_per_s, config.link_bytes_per_s
        )
        ageing = GreedyDual()
        self.host_tier: HostTier[Any] = HostTier(config.host_bytes)
        self._loading = Stopwatch(clock)
        self.loading_s = 0.0
        """What the last step, and the `add`s before it, spent on adapters' loading."""
        self.max_loading_s = 0.0
        self.residency = Residency(
            self.pool,
            config.page_bytes(base),
            loader.start,
            max_loads=config.max_loads,
            ageing=ageing,
            speeds=self.speeds,
            tier=AdapterTier(self.host_tier),
            watch=self._loading,
        )
        self.prefix_cache = PrefixCache(self.pool, ageing, config.prefix_protected_share)
        self.swapping = Swapping(
            self.pool,
            self.prefix_cache,
            self.host_tier,
            runner,
            self.speeds,
            preemption=config.preemption,
            block_size=config.block_size,
            page_bytes=config.page_bytes(base),
        )
        holdings = Holdings(
            self.pool,
            self.residency,
            self.prefix_cache,
            self.swapping,
            self.speeds,
            config.block_size,
            base.max_model_len,
        )
        order = FairOrder(config.max_age_s, config.overtaking_slack_tokens, clock)
        self.scheduler = Scheduler(
            config,
            self.pool,
            self.residency,
            self.prefix_cache,
            holdings,
            self.swapping,
            order,
        )
        self.levers = AdapterLevers(
            engine_id,
            self.residency,
            holdings.room,
            self.pool,
            self.scheduler.sequences_on,
            admits=admits,
            clock=clock,
        )
        # NOTE: the secret dies with this process, and the cache with it.
        self._hasher = BlockHasher(
            config.block_size, base.fingerprint, secrets.token_bytes(32), config.shared_prefixes
        )

    @property
    def has_work(self) -> bool:
        return self.scheduler.num_sequences > 0 or self._is_busy

    @property
    def has_runnable(self) -> bool:
        """False while all there is waits for an adapter: then the next step would do nothing."""
        is_busy = self._is_busy or self.levers.wants_step
        return is_busy or self.scheduler.has_runnable

    @property
    def _is_busy(self) -> bool:
        return bool(self._answers) or bool(self._in_flight) or self.swapping.is_busy

    def block_keys(self, request: EngineRequest) -> BlockKeys | None:
        """For any thread: what `add` takes, so that no prompt is hashed on the step loop.

        None where the request shares no blocks.
        """
        if not self._config.prefix_caching:
            return None
        try:
            return self._hasher.keys(request)
        except Exception:  # the edge of a request: it is served without the cache
            log.exception("row_failed", at="hash", request_id=request.request_id)
            return None

    def add(self, request: EngineRequest, block_keys: BlockKeys | None = None) -> None:
        """Queue a request; what is wrong with it is answered by the next `step`."""
        self._num_added += 1
        sequence = Sequence(request, self._num_added, block_keys or self.block_keys(request))
        try:
            self._count_reasoning(sequence)
            error = self._check.error_of(request)
            if error is None:
                self._prepare_trial(request)
                error = self.scheduler.add(sequence)
        except Exception:  # the edge of a request
            log.exception("row_failed", at="add", request_id=request.request_id)
            self.scheduler.abort(request.request_id, request.epoch)
            error = INTERNAL_ERROR
        if error is not None:
            self._answers.add_error(sequence, error)

    def _count_reasoning(self, sequence: Sequence) -> None:
        if self._reasoning_tokens is not None:
            request = sequence.request
            sequence.reasoning = ReasoningCount(
                self._reasoning_tokens, request.prompt_token_ids, request.delivered_token_ids
            )

    def _prepare_trial(self, request: EngineRequest) -> None:
        """Let an adapter be loaded anew, and so be measured, that was loaded before its trial."""
        adapter = request.adapter
        if adapter is None or not (request.wants_evidence and adapter.is_on_trial):
            return
        standing = self.residency.find(adapter)
        is_settled = standing is None or standing.state in (State.READY, State.KEPT)
        if is_settled and self._loader.figures_of(adapter) is None:
            self.residency.unload(adapter)

    def abort(self, request_id: str, epoch: int) -> bool:
        """Forget a request whose client is gone. False where it is unknown or of another epoch."""
        return self.scheduler.abort(request_id, epoch)

    def step(self) -> dict[str, OutputBatch]:
        """Run one iteration; returns what each API process (by id) has to be told."""
        self._take_loads()
        self._pull_levers()
        step = self.scheduler.schedule()
        if step:
            self._launch(step)
        if not step or len(self._in_flight) == self._runner.max_in_flight:
            self._collect()
        self.loading_s = self._loading.take()
        self.max_loading_s = max(self.max_loading_s, self.loading_s)
        return self._answers.take()

    def check_integrity(self) -> None:
        """Assert that the books of pages, sequences and adapters agree."""
        self.scheduler.check_integrity()

    def _take_loads(self) -> None:
        with self._loading:
            for result in self._loader.take_completed():
                self.levers.observe(result)
                self.scheduler.complete_load(result)
        for sequence, error in self.scheduler.take_failed():
            self._answers.add_error(sequence, error)

    def _pull_levers(self) -> None:
        if doomed := self.levers.doomed():
            self._fail(doomed, DELETED)
        self.levers.settle()

    def _launch(self, step: Step) -> None:
        self.num_steps += 1
        launched_at, failure = self._clock(), None
        try:
            handle = self._runner.execute(step, self.residency)
        except Exception as error:  # the engine answers, whatever broke
            failure = error
        if failure is None:
            self.scheduler.launch(step, handle.sampling)
            self._in_flight.append((step, handle, launched_at))
        elif isinstance(failure, RowsFailedError):
            self._leave_out(step, failure)
        else:
            log.error("launch_failed", exc_info=failure, **_described(step))
            self._collect()  # the step before it may still be well
            self._divide(step)

    def _leave_out(self, step: Step, failure: RowsFailedError) -> None:
        """Answer the rows that cannot be prepared, and launch the others."""
        for sequence, cause in failure.causes.items():
            log.error("row_failed", at="prepare", request_id=sequence.request_id, exc_info=cause)
        self._fail(failure.causes)
        if rest := {each: step[each] for each in step if each not in failure.causes}:
            self._launch(rest)

    def _divide(self, step: Step) -> None:
        """A step broke as a whole: launch its halves one after the other, and theirs, until the
        sequence at fault is alone. The others compute the same positions once more, to the same
        end. No step is in flight, so that every token is known."""
        live = [sequence for sequence in step if not sequence.is_finished]
        if len(live) <= 1:
            self._fail(live)
            return
        middle = len(live) // 2
        for half in (live[:middle], live[middle:]):
            self._launch({sequence: step[sequence] for sequence in half})
            self._collect()

    def _collect(self) -> None:
        """Wait for the oldest step in flight, if there is one, and answer what it sampled."""
        if not self._in_flight:
            return
        step, handle, launched_at = self._in_flight.popleft()
        try:
            sampled = handle.result()
        except Exception:  # the engine answers, whatever broke
            log.exception("step_failed", **_described(step))
            self.scheduler.land(step, is_well=False)
            self._fail(step)
            return
        self._measure(step, launched_at)
        self.scheduler.land(step)
        self._take(sampled)

    def _take(self, sampled: Mapping[Sequence, Outcome]) -> None:
        """Answer the rows of a step that landed: a token, or the reason why there is none."""
        update, tell = self.scheduler.update, self._answers.add_token
        for sequence, outcome in sampled.items():
            try:
                if isinstance(outcome, EngineError):
                    self._fail([sequence], outcome)
                elif update(sequence, outcome):
                    tell(sequence)
            except Exception:  # the edge of a row
                if sequence.is_finished:
                    raise  # the books are at fault, and they are everybody's
                log.exception("row_failed", at="update", request_id=sequence.request_id)
                self._fail([sequence])

    def _measure(self, step: Step, launched_at: float) -> None:
        """What prompts cost, from steps that have more of them than of single tokens."""
        now, num_tokens = self._clock(), sum(step.values())
        if num_tokens > self._config.max_num_batched_tokens // 2:
            self.speeds.observe_prefill(num_tokens, now - max(launched_at, self._collected_at))
        self._collected_at = now

    def _fail(self, sequences: Iterable[Sequence], error: EngineError = INTERNAL_ERROR) -> None:
        for sequence in self.scheduler.fail(sequences):
            self._answers.add_error(sequence, error)


def _described(step: Step) -> dict[str, list[str] | list[int]]:
    """A step for the log."""
    return {
        "request_ids": [sequence.request_id for sequence in step],
        "num_tokens": list(step.values()),
    }
