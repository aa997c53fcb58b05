"""A hash in the place of the model: the next token is a function of the prefix and the adapter.

It has a device's manners: steps run in order, as late as they can, over pages that hold the hashes
of prefixes (`tests/stub_engine/memory.py`); so a page that was given away too early, a block of
another adapter or a wrong placeholder raises. A step takes the time that `StepCosts` says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.residency import Residency
from engine.scheduler import Step
from engine.sequence import Sequence as EngineSequence
from engine.step_handle import StepHandle
from lora.base_spec import BaseSpec
from tests.stub_engine.clock import Clock
from tests.stub_engine.loader import StubWeights
from tests.stub_engine.memory import AdapterPart, Block, MisuseError, PageMemory, chained, root_of

MAX_LOGIT = 1009  # a prime: what a stub tells for a logit, in the place of the many of a model


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds that a step takes: each, and for every token it computes."""

    step_s: float = 0.0
    token_s: float = 0.0
    swap_page_s: float = 0.0

    def of(self, num_tokens: int) -> float:
        return self.step_s + num_tokens * self.token_s


@dataclass(frozen=True, slots=True)
class DoneAt:
    """An event of the device's, at a moment that is known already."""

    clock: Clock
    moment: float
    seconds: float = 0.0
    """What was queued takes so long."""

    def is_done(self) -> bool:
        return self.clock() >= self.moment

    def wait(self) -> None:
        self.clock.sleep(max(0.0, self.moment - self.clock()))


@dataclass(frozen=True, slots=True)
class StubHostCopy:
    """Pages that were swapped out, in the order in which they were asked for."""

    content: list[Block | AdapterPart | None]
    done: DoneAt


@dataclass(frozen=True, slots=True)
class _Rows:
    """One sequence's part of a step, copied when it was launched."""

    sequence: EngineSequence
    input_ids: list[int]
    begin: int
    block_table: list[int]
    weights: StubWeights | None
    samples: bool


@dataclass(eq=False, slots=True)
class _Launched:
    """A step in the device's queue, and its handle."""

    runner: HashRunner
    rows: list[_Rows]
    before: Sequence[int]
    """What the step before this one samples; complete once that one has run."""
    done: DoneAt
    sampled: list[int] = field(default_factory=list)

    @property
    def sampling(self) -> list[EngineSequence]:
        return [rows.sequence for rows in self.rows if rows.samples]

    def result(self) -> Mapping[EngineSequence, int]:
        self.runner.run_until(self)
        self.done.wait()
        return dict(zip(self.sampling, self.sampled, strict=True))


class HashRunner:
    """`engine.core.Runner` without a model. `memory` is shared with the loader."""

    def __init__(
        self,
        config: EngineConfig,
        base: BaseSpec,
        clock: Clock,
        costs: StepCosts = StepCosts(),
        *,
        max_in_flight: int = 1,
    ) -> None:
        self.max_in_flight = max_in_flight
        self.memory = PageMemory(config.block_size)
        self._vocab_size = base.vocab_size
        self._clock = clock
        self._costs = costs
        self._queue: deque[_Launched] = deque()
        self._last_sampled: Sequence[int] = []
        self._free_at = 0.0

    def execute(self, step: Step, residency: Residency) -> StepHandle:
        rows = [_rows(sequence, num_tokens, residency) for sequence, num_tokens in step.items()]
        begins_at = max(self._clock(), self._free_at)
        self._free_at = begins_at + self._costs.of(sum(step.values()))
        done = DoneAt(self._clock, self._free_at)
        launched = _Launched(self, rows, self._last_sampled, done)
        self._last_sampled = launched.sampled
        self._queue.append(launched)
        return launched

    def poison_pages(self, pages: Sequence[int]) -> None:
        """At once: no step that waits may have them."""
        self.memory.poison(pages)

    def swap_out(self, pages: Sequence[int]) -> StubHostCopy:
        """Copy `pages` as the steps queued so far leave them."""
        while self._queue:
            self._run(self._queue.popleft())
        return StubHostCopy(self.memory.read(pages), self._after_swap(pages))

    def swap_in(self, copy: StubHostCopy, pages: Sequence[int]) -> DoneAt:
        """Write `copy` to `pages`; steps may read them once the event is done."""
        assert copy.done.is_done(), "swapped in before it was out"
        self.memory.write(pages, copy.content)
        return self._after_swap(pages)

    def run_until(self, step: _Launched) -> None:
        while step in self._queue:
            self._run(self._queue.popleft())

    def _after_swap(self, pages: Sequence[int]) -> DoneAt:
        seconds = len(pages) * self._costs.swap_page_s
        return DoneAt(self._clock, self._clock() + seconds, seconds)

    def _run(self, launched: _Launched) -> None:
        for rows in launched.rows:
            digest = None
            if rows.weights is not None:
                digest = rows.weights.ref.digest
                self.memory.check_adapter(rows.weights.key, rows.weights.pages)
            found = self.memory.prefix(rows.block_table, rows.begin, root_of(digest))
            for position, token_id in enumerate(rows.input_ids, rows.begin):
                if token_id < 0:
                    token_id = launched.before[-1 - token_id]
                found = self.memory.append(rows.block_table, position, found, token_id)
            if rows.samples:
                launched.sampled.append(found % self._vocab_size)
                rows.sequence.told_logits = (float(found % MAX_LOGIT),)


def generate(
    prompt: Sequence[int], adapter_digest: str | None, num_tokens: int, vocab_size: int
) -> list[int]:
    """What a sequence gets when nothing ends it early."""
    found, tokens = root_of(adapter_digest), []
    for token_id in prompt:
        found = chained(found, token_id)
    for _ in range(num_tokens):
        tokens.append(found % vocab_size)
        found = chained(found, tokens[-1])
    return tokens


def _rows(sequence: EngineSequence, num_tokens: int, residency: Residency) -> _Rows:
    begin = sequence.num_computed_tokens
    end = begin + num_tokens
    if sequence.is_finished or not 0 < num_tokens <= sequence.num_uncomputed_tokens:
        raise MisuseError("tokens that it does not have")
    weights = None
    if sequence.adapter is not None:
        weights = residency.weights(sequence.adapter).for_kernels
    return _Rows(
        sequence,
        sequence.token_ids[begin:end],
        begin,
        list(sequence.block_table),
        weights,
        samples=end == sequence.num_tokens,
    )
