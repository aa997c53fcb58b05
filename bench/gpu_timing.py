"""How long work on the GPU takes: medians of CUDA-graph replays.

Knows nothing of what it times. Invariant: in a dry run work is done once and no time is told.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

WARM_UPS = 3
ROUNDS = 15
MAX_S = 2.0
"""A measurement that would take longer is made of fewer replays, at least three."""


def compute_device(*, dry: bool) -> torch.device:
    return torch.device("cpu" if dry else "cuda")


def compute_dtype(*, dry: bool) -> torch.dtype:
    """What the benches compute in; Triton's interpreter gets bfloat16 wrong."""
    return torch.float32 if dry else torch.bfloat16


class Timer:
    """Times calls by replaying them as a CUDA graph."""

    def __init__(self, *, dry: bool) -> None:
        self._dry = dry

    def us(self, call: Callable[[int], object], *, calls: int = 1) -> float | None:
        """Median microseconds of one `call(i)`; `calls` of them, i = 0, 1, ..., are one graph.

        Give each i inputs of its own where one call's inputs would stay in the L2 cache.
        """
        if self._dry:
            call(0)
            return None
        graph = self.capture(call, calls=calls)
        return self.replay_us(graph.replay) / calls

    def capture(self, call: Callable[[int], object], *, calls: int = 1) -> torch.cuda.CUDAGraph:
        """A graph of `calls` calls, after warm-ups that compile kernels and make handles."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                call(0)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(calls):
                call(index)
        return graph

    def eager_us(self, call: Callable[[], object]) -> float | None:
        """Median microseconds of `call` without a graph, its launches included."""
        if self._dry:
            call()
            return None
        for _ in range(WARM_UPS):
            call()
        return self.replay_us(call)

    def replay_us(self, replay: Callable[[], object]) -> float:
        first = self._once_us(replay)
        rounds = max(3, min(ROUNDS, int(MAX_S * 1e6 / max(first, 1.0))))
        return statistics.median(self._once_us(replay) for _ in range(rounds))

    def _once_us(self, replay: Callable[[], object]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e3
