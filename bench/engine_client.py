"""An engine in this process with a client that looks at the clock: no HTTP, no queue.

Knows nothing of what is compared. Invariant: an answer that ends in an error ends the bench.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

from engine.adapter_key import adapter_key
from engine.adapter_loader import AdapterLoader
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import AdapterRef, EngineRequest, SamplingParams
from engine.runners import ModelHost
from lora.base_spec import BaseSpec
from lora.store import AdapterStore

WAIT_S = 0.01


@dataclass(slots=True)
class Answer:
    """One request and when its tokens came."""

    name: str
    was_in_pool: bool
    """Whether its adapter had pages when it was asked for."""
    added_at: float
    token_at: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.token_at[0] - self.added_at

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies."""
        return [after - before for before, after in pairwise(self.token_at)]


class EngineClient:
    """Asks one engine, and steps it as its loop would."""

    def __init__(
        self, runner: ModelHost, base: BaseSpec, store: AdapterStore, config: EngineConfig
    ) -> None:
        """runner: made with `config`, or a model that several engines use in turn."""
        self._arrived = threading.Event()
        self._loader = AdapterLoader(
            store,
            base,
            runner.base_tensors,
            prepare=runner.prepare_adapter,
            on_completed=self._arrived.set,
        )
        self.core = EngineCore(config, base, runner, self._loader, engine_id="bench")
        self._under_way: dict[str, Answer] = {}
        self.loading_s: list[float] = []
        """What each step spent on adapters' loading."""

    def ask(
        self, name: str, adapter: AdapterRef | None, prompt: list[int], num_tokens: int
    ) -> Answer:
        ready = self.core.residency.ready_keys()
        was_in_pool = adapter is None or adapter_key(adapter) in ready
        request = EngineRequest(
            request_id=name,
            tenant_id=adapter.tenant_id if adapter is not None else "base",
            api_id="bench",
            epoch=0,
            prompt_token_ids=prompt,
            sampling=SamplingParams(seed=0, max_tokens=num_tokens, temperature=0.0),
            adapter=adapter,
        )
        answer = self._under_way[name] = Answer(name, was_in_pool, time.perf_counter())
        self.core.add(request)
        return answer

    def step(self) -> list[Answer]:
        """One step of the engine, or a wait for an adapter; returns what ended."""
        if not self.core.has_runnable:
            self._arrived.wait(WAIT_S)
        self._arrived.clear()
        batches = self.core.step()
        now = time.perf_counter()
        self.loading_s.append(self.core.loading_s)
        ended = []
        for output in (each for batch in batches.values() for each in batch.outputs):
            if output.error is not None:
                raise RuntimeError(f"{output.error.code}: {output.error.message}")
            answer = self._under_way[output.request_id]
            answer.token_at.append(now)
            if output.finish_reason is not None:
                ended.append(self._under_way.pop(output.request_id))
        return ended

    @property
    def num_under_way(self) -> int:
        return len(self._under_way)

    def close(self) -> None:
        self._loader.close()
