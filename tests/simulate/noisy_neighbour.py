"""Eight tenants at their fair share of one engine; then one of them asks for fifty times as much.

A tenant is so many clients, each of which asks again a little after it was answered. At the fair
share their requests just keep all seats taken, so that a slower answer cannot hide in idle time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from random import Random

from tests.builders.engines import make_request
from tests.simulate.world import World
from tests.stub_engine.runner import StepCosts

NUM_TENANTS = 8
NUM_CLIENTS = 6
"""Of a tenant at its fair share: with those of all, somewhat more than there are seats."""
EXCESS = 50
COSTS = StepCosts(step_s=0.008, token_s=0.0002)
MAX_NUM_SEQS = 32
MAX_BATCHED = 128
PROMPT = (20, 100)
OUTPUT = (10, 50)
MEAN_PAUSE_S = 0.25
NOISY = "ten_0"
QUIET = [f"ten_{i}" for i in range(1, NUM_TENANTS)]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the tenants at their fair share saw. Times in seconds."""

    num_requests: int
    ttft_p50_s: float
    ttft_p99_s: float
    tokens_per_s: float


def run(seed: int, seconds: float, *, is_noisy: bool) -> Seen:
    """The first tenth of `seconds` is not counted."""
    world = World(
        num_pages=24 * MAX_NUM_SEQS,
        costs=COSTS,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_BATCHED,
        prefix_caching=False,
    )
    rng, numbers = Random(seed), count()
    asking: list[tuple[float, int, str]] = []

    def pause(tenant_id: str) -> None:
        at = world.clock() + rng.expovariate(1 / MEAN_PAUSE_S)
        heapq.heappush(asking, (at, next(numbers), tenant_id))

    for tenant_id in (NOISY, *QUIET):
        factor = EXCESS if is_noisy and tenant_id == NOISY else 1
        for _ in range(NUM_CLIENTS * factor):
            pause(tenant_id)
    while world.clock() < seconds:
        while asking and asking[0][0] <= world.clock():
            at, number, tenant_id = heapq.heappop(asking)
            _ask(world, at, number, tenant_id, rng)
        if not world.core.has_work:
            world.clock.advance_to(asking[0][0])
            continue
        world.step()
        for output in world.seen:
            if output.finish_reason is not None:
                pause(world.asked[output.request_id].request.tenant_id)
    return _seen(world, seconds)


def _ask(world: World, at: float, number: int, tenant_id: str, rng: Random) -> None:
    prompt = [1] * rng.randint(*PROMPT)
    request = make_request(
        f"{tenant_id} {number}", prompt, max_tokens=rng.randint(*OUTPUT), tenant_id=tenant_id
    )
    world.add(request)
    world.asked[request.request_id].added_at = at


def _seen(world: World, seconds: float) -> Seen:
    begin = seconds / 10
    quiet = [each for each in world.asked.values() if each.request.tenant_id != NOISY]
    # Who has not been answered yet has waited until now.
    ttfts = sorted(
        (each.token_times or [seconds])[0] - each.added_at
        for each in quiet
        if each.added_at >= begin
    )
    num_tokens = sum(time >= begin for each in quiet for time in each.token_times)
    return Seen(
        num_requests=len(ttfts),
        ttft_p50_s=ttfts[len(ttfts) // 2],
        ttft_p99_s=ttfts[len(ttfts) * 99 // 100],
        tokens_per_s=num_tokens / (seconds - begin),
    )
