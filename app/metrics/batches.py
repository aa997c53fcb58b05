"""What Prometheus reads of the batches that a worker runs: how many, how far, and how they ended.

Knows nothing of how a line is run. Invariants: no label names a batch or a tenant; what a turn has
in hand is gone from the sums when the turn ends, however that comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

OUTCOMES = ("completed", "failed", "expired", "cancelled")
LINE_OUTCOMES = ("completed", "failed")


@dataclass(slots=True, eq=False)
class Turn:
    """Lines of one batch that this worker runs, and those that it has not begun."""

    num_running: int = 0
    num_waiting: int = 0


class BatchMetrics(Collector):
    """Of one worker process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._turns: set[Turn] = set()
        self._ended = Counter(
            "tenfold_batches_ended",
            "Batches that ended at this worker, by how.",
            ("outcome",),
            registry=registry,
        )
        self._lines = Counter(
            "tenfold_batch_lines_answered",
            "Lines of batches that this worker has answered.",
            ("outcome",),
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._ended.labels(outcome)
        for outcome in LINE_OUTCOMES:
            self._lines.labels(outcome)
        registry.register(self)

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """A turn with a batch, to the end of the block."""
        turn = Turn()
        self._turns.add(turn)
        try:
            yield turn
        finally:
            self._turns.discard(turn)

    def ended(self, outcome: str) -> None:
        """A batch is over, as its `status` says."""
        self._ended.labels(outcome).inc()

    def answered(self, num_completed: int, num_failed: int) -> None:
        """So many lines were written down."""
        for outcome, number in zip(LINE_OUTCOMES, (num_completed, num_failed), strict=True):
            self._lines.labels(outcome).inc(number)

    def collect(self) -> Iterator[Metric]:
        turns = list(self._turns)
        for name, what, number in (
            ("tenfold_batches_running", "Batches that this worker runs.", len(turns)),
            (
                "tenfold_batch_lines_running",
                "Lines that it runs, of all of them.",
                sum(turn.num_running for turn in turns),
            ),
            (
                "tenfold_batch_lines_waiting",
                "Lines of these batches that have not begun.",
                sum(turn.num_waiting for turn in turns),
            ),
        ):
            yield GaugeMetricFamily(name, what, value=number)
