"""Clients that vanish, with the engine's steps counted: two at most, however busy the machine is.

The engine's device ends a step when the test lets it. So once the engine has been told, what is
counted is its work alone; how soon it is told is measured in `test_disconnects.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from app.requests.consumer import UsageConsumer
from engine.transport import keys
from engine.transport.server import EngineTransport
from tests.builders.raw_client import RawClient
from tests.builders.stub_loop import StubLoop
from tests.builders.waiting import eventually, until
from tests.faults.test_disconnects import ADAPTERS, DeafTransport, Scene, consumer, scene
from tests.stub_engine.clock import SteppedClock

__all__ = ["consumer", "scene"]

pytestmark = pytest.mark.timeout(600)

MAX_STEPS = 2
BUSY_MACHINE_S = 30.0
NEVER_S = 600.0
POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Stepped:
    """An engine, and the clock that holds it."""

    engine: StubLoop
    clock: SteppedClock

    async def steps_until(self, is_true: Callable[[], bool], at_most: int | None = None) -> int:
        """Let it step until that is so, or so often; how many steps it took."""
        num_steps, give_up_at = 0, time.monotonic() + BUSY_MACHINE_S
        while not is_true() and num_steps != at_most:
            assert time.monotonic() < give_up_at, "it did not come about in time"
            if self.clock.is_held:
                self.clock.let()
                num_steps += 1
            await asyncio.sleep(POLL_S)
        return num_steps

    async def is_told(self) -> None:
        """Return when it is in a step, and a message waits for the end of that."""
        await until(lambda: self.clock.is_held and self.engine.loop._inbox.qsize() > 0)


@contextmanager
def stepped(
    scene: Scene, *, transport: type[EngineTransport] = EngineTransport, **options: Any
) -> Iterator[Stepped]:
    clock = SteppedClock()
    with StubLoop(
        scene.redis_url, scene.base, step_s=0.001, clock=clock, transport=transport, **options
    ) as engine:
        try:
            yield Stepped(engine, clock)
        finally:
            clock.release()


async def queued(scene: Scene, stream: bool) -> int:
    """The engine is full, and does not even know of it."""
    with stepped(scene, max_num_seqs=1) as held:
        clients = [scene.client(stream=stream)]
        await held.steps_until(lambda: held.engine.core.scheduler.num_running == 1)
        while scene.num_in_queue == 0:  # more than it looks ahead
            clients.append(scene.client(stream=stream))
            await until(partial(all_known, scene, clients))
            await asyncio.sleep(0.05)
        clients[-1].vanish()
        await until(lambda: scene.num_in_queue == 0)
        assert held.clock.is_held, "it has not heard of anything"
        for client in clients[:-1]:
            client.vanish()
        held.clock.release()
        await until(lambda: held.engine.is_empty)
        return 0


def all_known(scene: Scene, clients: Sequence[RawClient]) -> bool:
    """Whether each has been submitted, and is not over."""
    return scene.context.queue.num_in_flight == len(clients)


async def waiting_for_room(scene: Scene, stream: bool) -> int:
    """Leased, while others fill the batch."""
    with stepped(scene, max_num_seqs=1) as held:
        clients = [scene.client(stream=stream)]
        await held.steps_until(lambda: held.engine.core.scheduler.num_running == 1)
        clients.append(scene.client(stream=stream))
        await held.is_told()
        await held.steps_until(lambda: held.engine.num_sequences == 2)
        clients[1].vanish()
        await held.is_told()
        num_steps = await held.steps_until(lambda: held.engine.num_sequences == 1)
        clients[0].vanish()
        held.clock.release()
        await until(lambda: held.engine.is_empty)
        return num_steps


async def prefilling(scene: Scene, stream: bool) -> int:
    with stepped(scene, max_num_batched_tokens=4) as held:
        client = scene.client(stream=stream, prompt=[7] * 300, max_tokens=8)
        await held.steps_until(lambda: held.engine.core.scheduler.num_running == 1)
        await held.steps_until(lambda: False, at_most=5)
        client.vanish()
        await held.is_told()
        num_steps = await held.steps_until(lambda: held.engine.is_empty)
        assert held.engine.core.num_steps * 4 < 300, "it was prefilling no more"
        return num_steps


async def decoding(scene: Scene, stream: bool) -> int:
    with stepped(scene) as held:
        client = scene.client(stream=stream)
        await held.steps_until(lambda: held.engine.core.num_steps >= 4)
        client.vanish()
        await held.is_told()
        return await held.steps_until(lambda: held.engine.is_empty)


async def swapped_out(scene: Scene, stream: bool) -> int:
    """Two requests of which only one has room; the younger waits on the host."""
    with stepped(scene, num_pages=20) as held:
        fields: dict[str, Any] = {"prompt": [7] * 100, "max_tokens": 220}
        clients = [scene.client(stream=stream, **fields)]
        await held.steps_until(lambda: held.engine.num_sequences == 1)
        clients.append(scene.client(stream=stream, **fields))
        await held.is_told()
        await held.steps_until(lambda: held.engine.num_sequences == 2)
        tier, swapping = held.engine.core.host_tier, held.engine.core.swapping
        await held.steps_until(lambda: tier.num_held_bytes > 0 and not swapping.is_busy)
        clients[1].vanish()
        await held.is_told()
        num_steps = await held.steps_until(
            lambda: tier.num_held_bytes == 0 and held.engine.num_sequences == 1
        )
        clients[0].vanish()
        held.clock.release()
        await until(lambda: held.engine.is_empty)
        return num_steps


async def waiting_for_an_adapter(scene: Scene, stream: bool) -> int:
    """While another request runs, so that there are steps to count."""
    with stepped(scene, load_s=NEVER_S) as held:
        other = scene.client(stream=stream)
        await held.steps_until(lambda: held.engine.core.num_steps >= 2)
        client = scene.client(stream=stream, model=ADAPTERS[0])
        await held.is_told()
        await held.steps_until(
            lambda: held.engine.loader.num_started == 1 and held.engine.num_sequences == 2
        )
        client.vanish()
        await held.is_told()
        num_steps = await held.steps_until(lambda: held.engine.num_sequences == 1)
        other.vanish()
        held.clock.release()
        await until(lambda: held.engine.num_sequences == 0)
        return num_steps


STATES = [
    queued,
    waiting_for_room,
    prefilling,
    decoding,
    swapped_out,
    waiting_for_an_adapter,
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("state", STATES)
async def test_what_a_vanished_client_held_is_free_within_two_steps(
    scene: Scene,
    consumer: UsageConsumer,
    state: Callable[[Scene, bool], Awaitable[int]],
    stream: bool,
) -> None:
    assert await state(scene, stream) <= MAX_STEPS
    await until(lambda: scene.num_held == 0)

    async def is_settled() -> bool:
        await consumer.run_once()
        return not scene.server.exists(f"{keys.PREFIX}reservations")

    await eventually(is_settled)
    reserved = scene.server.hgetall(f"{keys.PREFIX}reserved:tenant:{scene.tenant.id}")
    assert reserved == {}, "its budget is free as well"


async def test_control_an_engine_that_hears_of_no_abort_takes_more_steps(scene: Scene) -> None:
    with stepped(scene, transport=DeafTransport) as held:
        client = scene.client(stream=False)
        await held.steps_until(lambda: held.engine.core.num_steps >= 4)
        client.vanish()
        await until(lambda: scene.context.queue.num_in_flight == 0)
        num_steps = await held.steps_until(lambda: held.engine.is_empty, at_most=5 * MAX_STEPS)
        assert num_steps == 5 * MAX_STEPS and not held.engine.is_empty
