"""One engine and its clients in virtual time: the real core, scheduler, pool and residency.

After every step the books are checked, and each answer is held against what was asked: an accepted
request ends exactly once, with the tokens of its prefix, and is not heard of after that.
Invariant: the same seed gives the same steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import AdapterRef, EngineError, EngineRequest, FinishReason, TokenOutput
from engine.residency import Residency
from engine.scheduler import Step
from engine.sequence import Sequence
from engine.step_handle import StepHandle
from tests.builders.adapters import TINY_BASE
from tests.stub_engine.clock import VirtualClock
from tests.stub_engine.loader import DelayedLoader
from tests.stub_engine.runner import HashRunner, StepCosts, generate

BLOCK_SIZE = 8
PAGE_BYTES = EngineConfig(block_size=BLOCK_SIZE).page_bytes(TINY_BASE)
COSTS = StepCosts(step_s=0.01, token_s=0.0005, swap_page_s=0.001)
DAMAGED = EngineError(code="adapter_corrupt", message="damaged")
IDLE_S = 0.001
"""How long an engine takes to find out that it has nothing to do; pages move meanwhile."""
PATIENCE = 200_000
"""Steps that do nothing visible before a simulation is given up."""


class WatchedRunner(HashRunner):
    """Notes when each request was first computed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.started_at: dict[str, float] = {}
        self.started: list[Sequence] = []
        """Since somebody last took them."""

    def execute(self, step: Step, residency: Residency) -> StepHandle:
        for sequence in step:
            if sequence.request_id not in self.started_at:
                self.started_at[sequence.request_id] = self._clock()
                self.started.append(sequence)
        return super().execute(step, residency)


@dataclass
class Asked:
    """A request, and what has been heard of it."""

    request: EngineRequest
    added_at: float
    tokens: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    error: EngineError | None = None
    finish_reason: FinishReason | None = None


class World:
    """pages_of, delay_s: of an adapter; fails: asked once a load."""

    def __init__(
        self,
        *,
        num_pages: int,
        costs: StepCosts = COSTS,
        max_in_flight: int = 1,
        pages_of: Callable[[AdapterRef], int] = lambda ref: 1,
        delay_s: Callable[[AdapterRef], float] = lambda ref: 0.0,
        fails: Callable[[AdapterRef], bool] = lambda ref: False,
        **config: Any,
    ) -> None:
        self.config = EngineConfig(
            block_size=BLOCK_SIZE,
            pool_bytes=num_pages * PAGE_BYTES,
            debug_poison_pages=True,
            **config,
        )
        self._pages_of = pages_of
        self.clock = VirtualClock()
        self.runner = WatchedRunner(
            self.config, TINY_BASE, self.clock, costs, max_in_flight=max_in_flight
        )
        self.loader = DelayedLoader(
            self.runner.memory,
            self.clock,
            pages_of=pages_of,
            fails=lambda ref: DAMAGED if fails(ref) else None,
            delay_s=delay_s,
        )
        self.core = EngineCore(
            self.config, TINY_BASE, self.runner, self.loader, "sim", clock=self.clock
        )
        self.asked: dict[str, Asked] = {}
        self.ended: Counter[str] = Counter()
        self.num_steps = 0
        self.seen: list[TokenOutput] = []
        """By the last step."""

    def add(self, request: EngineRequest) -> None:
        assert request.request_id not in self.asked
        self.asked[request.request_id] = Asked(request, self.clock())
        self.core.add(request)

    def abort(self, request_id: str) -> None:
        """A client goes away; the engine must know the request exactly if it has not ended."""
        asked = self.asked[request_id]
        was_here = self.core.abort(request_id, asked.request.epoch)
        if was_here:
            self._end(asked, FinishReason.ABORT)
        else:
            # It was refused when it was added, and the next step says so; or it has ended.
            assert self.core.has_work or asked.finish_reason is not None
        self.core.check_integrity()

    def step(self) -> None:
        """One of the engine's. Where only an adapter is waited for, time passes until then."""
        if self.core.has_work and not self.core.has_runnable and self.loader.next_due is not None:
            self.clock.advance_to(self.loader.next_due)
        begin = self.clock()
        batches = self.core.step()
        self.num_steps += 1
        self.core.check_integrity()
        self.seen = [output for batch in batches.values() for output in batch.outputs]
        for output in self.seen:
            self._hear(output)
        if not self.seen and self.clock() == begin:
            self.clock.sleep(IDLE_S)

    def finish(self) -> None:
        """Step until nothing is left; then all is answered, and all pages can be had again."""
        begin = self.num_steps
        while self.core.has_work:
            self.step()
            assert self.num_steps - begin < PATIENCE, "no end in sight"
        for request_id, asked in self.asked.items():
            assert self.ended[request_id] == 1, f"{request_id} ended {self.ended[request_id]} times"
            check_tokens(asked, self._room(asked.request.adapter))
        available = self.core.scheduler.num_available_pages
        assert available == self.core.pool.num_pages, "a page was lost"

    def _room(self, adapter: AdapterRef | None) -> int:
        """Tokens that the pool holds beside the adapter."""
        num_pages = self.core.pool.num_pages
        if adapter is not None:
            num_pages -= self._pages_of(adapter)
        return num_pages * BLOCK_SIZE

    def _hear(self, output: TokenOutput) -> None:
        asked = self.asked[output.request_id]
        assert asked.finish_reason is None, "heard of after its end"
        assert output.index == len(asked.tokens), "a token was lost, or came twice"
        asked.tokens += output.token_ids
        asked.token_times += [self.clock()] * len(output.token_ids)
        asked.error = output.error
        if output.finish_reason is not None:
            self._end(asked, output.finish_reason)

    def _end(self, asked: Asked, reason: FinishReason) -> None:
        asked.finish_reason = reason
        self.ended[asked.request.request_id] += 1


def check_tokens(asked: Asked, room: int) -> None:
    """Whatever it got is what it would have got alone; and all of it, where nothing went wrong.

    room: tokens at which it ends in any case.
    """
    request, tokens = asked.request, asked.tokens
    digest = request.adapter.digest if request.adapter is not None else None
    max_tokens = request.sampling.max_tokens
    alone = generate(request.prompt_token_ids, digest, max_tokens, TINY_BASE.vocab_size)
    assert tokens == alone[: len(tokens)], "another one's tokens"
    stops = request.sampling.stop_token_ids
    assert not any(token in stops for token in tokens[:-1]), "tokens after a stop"
    if asked.finish_reason is FinishReason.STOP:
        assert tokens[-1] in stops
    if asked.finish_reason is FinishReason.LENGTH:
        length = min(max_tokens, room - len(request.prompt_token_ids))
        assert len(tokens) == length, "it ended early"
    if asked.finish_reason is FinishReason.ERROR:
        assert asked.error is not None
        codes = ("adapter_corrupt", "adapter_too_large", "request_too_large")
        assert asked.error.code in codes
