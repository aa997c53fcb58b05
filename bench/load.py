"""Ways to put load on a server: closed loop (so many streams) and open loop (so many a second).

Knows nothing of HTTP or statistics. Invariant: in the open loop the times at which requests are
due are drawn before the first is sent, each is sent then whatever the others do, and latency
counts from that time; so a slow server cannot hide by slowing its own load down (coordinated
omission).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable

from bench.openai_stream import Sample

# (index of the request, when it is due on time.perf_counter's clock) -> what was measured
Send = Callable[[int, float], Awaitable[Sample]]


async def closed_loop(
    send: Send, *, streams: int, requests: int, on_done: Callable[[Sample], None]
) -> list[Sample]:
    """`streams` clients; each sends its next request when its last has ended."""
    indices = iter(range(requests))
    samples: list[Sample] = []

    async def client() -> None:
        for index in indices:  # One iterator for all: each index is taken once.
            sample = await send(index, time.perf_counter())
            samples.append(sample)
            on_done(sample)

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(client())
    return samples


async def open_loop(
    send: Send, *, rate: float, requests: int, seed: int, on_done: Callable[[Sample], None]
) -> list[Sample]:
    """Poisson arrivals at `rate` a second, without a bound on how many are in flight."""
    started_at = time.perf_counter() + 0.1
    samples: list[Sample] = []

    async def client(index: int, due_at: float) -> None:
        await asyncio.sleep(due_at - time.perf_counter())
        sample = await send(index, due_at)
        samples.append(sample)
        on_done(sample)

    async with asyncio.TaskGroup() as group:
        for index, offset_s in enumerate(arrival_offsets(rate, requests, seed)):
            group.create_task(client(index, started_at + offset_s))
    return samples


def arrival_offsets(rate: float, requests: int, seed: int) -> list[float]:
    """Seconds after the start at which each request is due; the same for the same seed."""
    rng = random.Random(seed)
    return list(itertools.accumulate(rng.expovariate(rate) for _ in range(requests)))
