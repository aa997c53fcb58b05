"""The stub engine's process without the process: every thread of it, and its books to look at.

Knows nothing of tests. Invariant: the loop has ended when the block does.
"""

from __future__ import annotations

import threading
from math import inf

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loop import EngineLoop
from engine.transport.server import EngineTransport
from lora.base_spec import BaseSpec
from tests.builders.queue_secret import QUEUE_SECRET
from tests.stub_engine.clock import Clock, RealClock
from tests.stub_engine.loader import DelayedLoader
from tests.stub_engine.runner import HashRunner, StepCosts

STEP_LIMIT_S = 5.0


class StubLoop:
    """`with StubLoop(redis_url, base, step_s=0.02) as engine: engine.core`. Times are real."""

    def __init__(
        self,
        redis_url: str,
        base: BaseSpec,
        *,
        step_s: float,
        num_pages: int = 4096,
        load_s: float = 0.0,
        max_num_seqs: int = 32,
        max_num_batched_tokens: int = 128,
        transport: type[EngineTransport] = EngineTransport,
        clock: Clock | None = None,
    ) -> None:
        """load_s: until an adapter is there. Whoever is preempted is swapped out.

        clock: one by which a step may take as long as it likes.
        """
        config = EngineConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            preemption="swap",
            debug_poison_pages=True,
            step_limit_s=STEP_LIMIT_S if clock is None else inf,
        )
        config = config.with_pool_bytes(num_pages * config.page_bytes(base))
        clock = clock or RealClock()
        self.step_s = step_s
        runner = HashRunner(config, base, clock, StepCosts(step_s))
        self.loader = DelayedLoader(
            runner.memory, clock, delay_s=lambda _: load_s, on_completed=lambda: self.loop.wake()
        )
        self.core = EngineCore(config, base, runner, self.loader, "stub-loop", clock=clock)
        queue = transport(redis_url, "stub-loop", secret=QUEUE_SECRET)
        self.loop = EngineLoop(self.core, queue, config)
        self._thread = threading.Thread(target=self.loop.run)

    def __enter__(self) -> StubLoop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "the loop did not stop"

    @property
    def num_sequences(self) -> int:
        """Here, in whatever state."""
        return self.core.scheduler.num_sequences

    @property
    def is_empty(self) -> bool:
        """Nothing is here, and every page is free or would be as soon as it is wanted."""
        num_available = self.core.scheduler.num_available_pages
        return not self.core.has_work and num_available == self.core.pool.num_pages
