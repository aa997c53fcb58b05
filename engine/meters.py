"""What an engine counts of what passes through it, as plain numbers.

Knows nothing of Prometheus (`engine/metrics.py` does). Invariants: each number is written by one
thread and may be read by any; nothing here waits, takes a lock, or grows with tenants, adapters or
requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from engine.messages import EngineRequest, FinishReason, TokenOutput

WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
STEP_S = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)


class LoopObserver(Protocol):
    """Is told what passes through an engine, by the thread that it passes through.

    Only `stepped` is called on the step loop: it must cost next to nothing. Nothing here raises.
    """

    def leased(self, request: EngineRequest) -> None:
        """A request has come; on the control thread."""

    def stepped(self, seconds: float) -> None:
        """A step is over; on the step loop."""

    def published(self, outputs: Sequence[TokenOutput]) -> None:
        """These outputs are on their way to the API; on the publisher's thread."""

    def ended(self, request_id: str, epoch: int, reason: str) -> None:
        """A lease was ended here, by an abort; on the publisher's thread."""


class Observers:
    """Several as one, in order; without any it does nothing."""

    def __init__(self, *observers: LoopObserver) -> None:
        self._observers = observers

    def leased(self, request: EngineRequest) -> None:
        for observer in self._observers:
            observer.leased(request)

    def stepped(self, seconds: float) -> None:
        for observer in self._observers:
            observer.stepped(seconds)

    def published(self, outputs: Sequence[TokenOutput]) -> None:
        for observer in self._observers:
            observer.published(outputs)

    def ended(self, request_id: str, epoch: int, reason: str) -> None:
        for observer in self._observers:
            observer.ended(request_id, epoch, reason)


class Histogram:
    """Counts values by upper bounds, the last of which is infinity."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, how many values up to it), as Prometheus writes them."""
        bounds = [*map(str, map(float, self._bounds)), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))


class EngineMeters:
    """One per engine process; a `LoopObserver`."""

    def __init__(self) -> None:
        self.step_s = Histogram(STEP_S)
        self.queue_s = Histogram(WAIT_S)
        self.adapter_wait_s = Histogram(WAIT_S)
        self.num_resumed = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0
        self.num_finished: Counter[str] = Counter()
        """By reason: `FinishReason`'s values, and the codes of our own errors."""

    def leased(self, request: EngineRequest) -> None:
        self.queue_s.observe(request.queue_ms / 1e3)
        self.num_resumed += bool(request.delivered_token_ids)

    def stepped(self, seconds: float) -> None:
        self.step_s.observe(seconds)

    def published(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            self.num_generated_tokens += len(output.token_ids)
            if output.finish_reason is not None:
                self._finish(output, output.finish_reason)

    def ended(self, request_id: str, epoch: int, reason: str) -> None:
        self.num_finished[reason] += 1

    def _finish(self, output: TokenOutput, reason: FinishReason) -> None:
        self.num_finished[reason.value if output.error is None else output.error.code] += 1
        if reason is FinishReason.HAND_OVER:
            return
        self.num_prompt_tokens += output.num_prompt_tokens
        self.num_cached_tokens += output.num_cached_tokens
        if output.adapter_load_ms > 0:
            self.adapter_wait_s.observe(output.adapter_load_ms / 1e3)
