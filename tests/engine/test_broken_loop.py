"""A step loop that broke leaves the queue at once: nothing goes on to beat or lease for it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from engine.loop import EngineLoop
from engine.messages import OutputBatch
from engine.meters import Observers
from tests.builders.requests import make_request
from tests.engine.test_metrics import stub_core


class BrokenError(Exception):
    """The books do not agree."""


class Queue:
    """A transport that has one request, and writes down who asked it when."""

    engine_id = "e"

    def __init__(self) -> None:
        self.levers = self
        self.waiting = [make_request(max_tokens=5)]
        self.asked: list[str] = []
        self.published: list[OutputBatch] = []
        self.closed_after: int | None = None

    def lease(self, *_: Any, **__: Any) -> list[Any]:
        self.asked.append("lease")
        leased, self.waiting = self.waiting, []
        return leased

    def wait_control(self, timeout_s: float) -> list[Any]:
        time.sleep(min(timeout_s, 0.01))
        return []

    def heartbeat(self, status: Any) -> None:
        self.asked.append("heartbeat")

    def update_resident(self, *_: Any) -> None:
        pass

    def report(self, reports: Any) -> None:
        pass

    def find_orphans(self) -> list[Any]:
        return []

    def publish(self, batches: dict[str, OutputBatch]) -> bool:
        self.published += batches.values()
        return True

    def take_unheard(self) -> list[Any]:
        return []

    def close(self) -> None:
        self.closed_after = len(self.asked)


def run(queue: Queue, *, is_broken: bool) -> None:
    """Until the loop has ended: because it broke, or because its one request has."""
    core, config = stub_core()
    transport: Any = queue

    class EndsWithIt(Observers):
        def published(self, outputs: Any) -> None:
            if any(each.finish_reason for each in outputs):
                loop.stop()

    loop = EngineLoop(core, transport, config, observers=EndsWithIt())
    if is_broken:

        def break_down() -> Any:
            raise BrokenError

        core.step = break_down  # type: ignore[method-assign]  # (on purpose)
    loop.run()


def test_a_loop_that_broke_leaves_the_queue_and_hands_nothing_over() -> None:
    queue = Queue()
    with pytest.raises(BrokenError):
        run(queue, is_broken=True)
    assert queue.asked.count("lease") >= 1, "it had the request"
    assert queue.closed_after == len(queue.asked), "and asked for nothing after it left"
    assert queue.published == [], "so it counts as a death of the request"


def test_control_one_that_ends_well_answers_before_it_leaves() -> None:
    queue = Queue()
    run(queue, is_broken=False)
    outputs = [each for batch in queue.published for each in batch.outputs]
    assert outputs[-1].finish_reason is not None
    assert queue.closed_after == len(queue.asked)
