"""No wake-up is lost: engines that sleep until they are told still find every request."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
import redis

from engine.messages import ControlMessage, Wake
from engine.transport import keys
from engine.transport.server import EngineTransport
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request

NUM_REQUESTS = 1500
NUM_ENGINES = 3
WAIT_S = 0.5


class Sleeper(threading.Thread):
    """An engine that asks only after a Wake, however long it takes to come."""

    def __init__(self, redis_url: str, number: int, done: threading.Event, seed: int) -> None:
        super().__init__(daemon=True)
        self.transport = EngineTransport(redis_url, f"engine-{number}", secret=QUEUE_SECRET)
        self.taken: list[str] = []
        self._done = done
        self._random = random.Random(seed)

    def run(self) -> None:
        while not self._done.is_set():
            while requests := self.transport.lease(1000, 16, self._random.randint(1, 4)):
                self.taken += [request.request_id for request in requests]
            messages: list[ControlMessage] = []
            while not messages and not self._done.is_set():
                messages = self.transport.wait_control(WAIT_S)
                assert all(message == Wake() for message in messages)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_wake_up_is_lost(redis_url: str, driver: QueueDriver, seed: int) -> None:
    done = threading.Event()
    sleepers = [Sleeper(redis_url, i, done, seed + i) for i in range(NUM_ENGINES)]
    for sleeper in sleepers:
        sleeper.start()
    draw = random.Random(seed)
    pause = threading.Event()
    for i in range(NUM_REQUESTS):
        driver.enqueue(make_request(f"ten_{i % 5}", request_id=f"req_{i}"))
        if draw.random() < 0.3:
            pause.wait(draw.random() * 0.002)  # let engines fall asleep, now and then
    with redis.Redis.from_url(redis_url, protocol=2) as server:
        for _ in range(500):
            if not server.exists(f"{keys.PREFIX}tenants"):
                break
            pause.wait(0.01)
        num_waiting = NUM_REQUESTS - sum(len(sleeper.taken) for sleeper in sleepers)
    done.set()
    for sleeper in sleepers:
        sleeper.join(timeout=10)
        sleeper.transport.close()
    counts = Counter(request_id for sleeper in sleepers for request_id in sleeper.taken)
    num_found = len(counts)
    assert num_found == NUM_REQUESTS, f"{num_waiting} requests were never found"
    assert set(counts.values()) == {1}


def test_an_engine_that_is_not_marked_idle_sleeps_on(
    redis_url: str, driver: QueueDriver, server: redis.Redis
) -> None:
    """The control: it is the mark, set in the same step as the empty answer, that wakes."""
    transport = EngineTransport(redis_url, "engine-0", secret=QUEUE_SECRET)
    assert transport.lease(1000, 16, 1) == []
    server.delete(f"{keys.PREFIX}idle")
    driver.enqueue(make_request())
    assert transport.wait_control(0.3) == []
    transport.close()
