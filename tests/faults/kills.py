"""Who is killed, how many at a time, and when the next ones may be.

Knows nothing of verdicts. Invariant: no request sees two engines die, since it would rightly be
refused; beside those that are killed there are some left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from tests.builders.waiting import until
from tests.faults.clients import Clients
from tests.faults.stack import Stack

ALL_MOVED_S = 60.0


def at_a_time(num: int, together: int) -> Iterator[int]:
    """Rounds of `together`, and what is left."""
    for done in range(0, num, together):
        yield min(together, num - done)


async def all_ended(clients: Clients, in_flight: set[int]) -> None:
    """Those calls have an end, whichever."""
    await until(lambda: in_flight.isdisjoint(clients.in_flight), timeout_s=ALL_MOVED_S)


async def kill_engines(
    stack: Stack, clients: Clients, num: int, rng: random.Random, *, together: int
) -> None:
    """The busiest; those that take their place have nothing of before."""
    for num_victims in at_a_time(num, together):
        await asyncio.sleep(rng.uniform(0.05, 0.4))
        victims = await asyncio.to_thread(stack.busiest, num_victims)
        for engine in victims:
            await asyncio.to_thread(engine.kill)
        in_flight = set(clients.in_flight)
        for engine in victims:
            engine.launch()
        await all_ended(clients, in_flight)
        await asyncio.to_thread(stack.wait_for, victims)


async def kill_apis(stack: Stack, num: int, rng: random.Random, *, together: int) -> None:
    """Some of them; the others answer."""
    for num_victims in at_a_time(num, together):
        await asyncio.sleep(rng.uniform(0.3, 0.8))
        victims = rng.sample(stack.apis, num_victims)
        for api in victims:
            await asyncio.to_thread(api.kill)
        await asyncio.gather(*(asyncio.to_thread(api.start) for api in victims))


async def kill_redis(stack: Stack, clients: Clients, num: int, rng: random.Random) -> None:
    """It comes back empty; new work is refused meanwhile, what runs goes on."""
    for _ in range(num):
        await asyncio.sleep(rng.uniform(0.2, 0.6))
        in_flight = set(clients.in_flight)
        await asyncio.to_thread(stack.kill_valkey, rng.uniform(0.0, 0.5))
        await asyncio.to_thread(stack.wait_for, stack.engines)
        await all_ended(clients, in_flight)
