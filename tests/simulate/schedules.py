"""Random schedules of requests, aborts, ends, preemptions and failed loads, from a seed.

Each runs to its end in a `World`. Two kinds: many short ones, and deep ones where tenants always
have something that waits. Knows nothing of how the engine decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from msgspec import structs

from engine.messages import AdapterRef, EngineRequest, FinishReason
from tests.builders.engines import make_request
from tests.simulate.service import ServiceBooks, bound
from tests.simulate.world import PAGE_BYTES, World

VOCAB = 128


@dataclass(slots=True)
class Figures:
    """Of one schedule, or of several added up."""

    num_schedules: int = 0
    num_steps: int = 0
    num_requests: int = 0
    num_aborted: int = 0
    num_stopped: int = 0
    num_failed_loads: int = 0
    num_refused: int = 0
    num_preempted: int = 0
    num_swapped: int = 0
    num_contests: int = 0
    """Schedules in which two tenants waited long enough for the bound to forbid something."""
    worst_of_bound: float = 0.0
    """The greatest difference in service between two tenants who both waited, over its bound."""

    def add(self, other: Figures) -> None:
        for name in self.__slots__:
            mine, yours = getattr(self, name), getattr(other, name)
            is_worst = name == "worst_of_bound"
            setattr(self, name, max(mine, yours) if is_worst else mine + yours)


@dataclass(frozen=True, slots=True)
class Arrival:
    step: int
    request: EngineRequest
    aborted_after: int | None
    """Steps until its client goes away."""


def run_schedule(seed: int) -> Figures:
    """Raises AssertionError where a promise is broken, but for the bound on service."""
    rng = Random(seed)
    is_deep = rng.random() < 0.04
    tenants = [f"ten_{i}" for i in range(rng.randint(2, 4))]
    weights = {tenant: rng.choice([1.0, 1.0, 2.0]) for tenant in tenants}
    num_pages = rng.randint(8, 24)
    adapters = {tenant: [_ref(tenant, i) for i in range(rng.randint(0, 2))] for tenant in tenants}
    sizes = {ref: rng.randint(1, 3) for refs in adapters.values() for ref in refs}
    failure_rate = rng.choice([0.0, 0.0, 0.3])
    slowest_s = rng.choice([0.0, 0.03, 0.2])
    world = World(
        num_pages=num_pages,
        max_in_flight=rng.choice([1, 2]),
        pages_of=sizes.__getitem__,
        delay_s=lambda ref: rng.uniform(0, slowest_s),
        fails=lambda ref: rng.random() < failure_rate,
        max_num_seqs=rng.randint(2, 8),
        max_num_batched_tokens=rng.choice([8, 16, 32, 64]),
        max_age_s=rng.choice([0.0, 0.05, 0.5]),
        overtaking_slack_tokens=rng.choice([0, 64]),
        prefix_caching=rng.random() < 0.7,
        max_loads=rng.randint(1, 4),
        preemption=rng.choice(["auto", "swap", "recompute"]),
        host_bytes=rng.choice([0, 4, 100]) * PAGE_BYTES,
    )
    shapes = _Shapes(rng, adapters, weights, num_pages)
    arrivals = shapes.deep() if is_deep else shapes.short()
    books = ServiceBooks(world, weights)
    _play(world, arrivals, books)
    limit = bound(max(len(each.request.prompt_token_ids) for each in arrivals), num_pages)
    return _figures(world, books, limit / min(weights.values()))


def _play(world: World, arrivals: list[Arrival], books: ServiceBooks) -> None:
    """All arrivals and aborts at their steps, then until nothing is left."""
    last = max(each.step + (each.aborted_after or 0) for each in arrivals)
    for now in range(last + 1):
        for each in arrivals:
            if each.step == now:
                world.add(each.request)
            if each.aborted_after is not None and each.step + each.aborted_after == now:
                world.abort(each.request.request_id)
        world.step()
        books.observe()
    while world.core.has_work:
        world.step()
        books.observe()
        assert world.num_steps < 20_000, "no end in sight"
    world.finish()


class _Shapes:
    """Draws what clients ask for."""

    def __init__(
        self,
        rng: Random,
        adapters: dict[str, list[AdapterRef]],
        weights: dict[str, float],
        num_pages: int,
    ) -> None:
        self._rng = rng
        self._adapters = adapters
        self._weights = weights
        self._num_pages = num_pages
        self._num_drawn = 0

    def short(self) -> list[Arrival]:
        rng = self._rng
        tenants = list(self._adapters)
        return [
            self._arrival(rng.choice(tenants), rng.randrange(25), rng.choice([10, 60]))
            for _ in range(rng.randint(3, 9))
        ]

    def deep(self) -> list[Arrival]:
        """Each tenant comes with all it has, one after the other."""
        rng = self._rng
        arrivals = []
        for tenant in self._adapters:
            longest = rng.choice([8, 24])
            arrivals += [self._arrival(tenant, 0, longest) for _ in range(rng.randint(50, 70))]
        return arrivals

    def _arrival(self, tenant_id: str, step: int, longest: int) -> Arrival:
        rng = self._rng
        self._num_drawn += 1
        # Beginnings that several share, for the prefix cache.
        prompt = [rng.randrange(3)] * rng.randint(1, longest) + [rng.randrange(VOCAB)]
        request = make_request(
            f"r{self._num_drawn}",
            prompt,
            adapter=rng.choice([None, *self._adapters[tenant_id]]),
            max_tokens=rng.randint(1, 20),
            tenant_id=tenant_id,
            stop_token_ids=tuple(rng.sample(range(VOCAB), rng.choice([0, 0, 8]))),
        )
        request = structs.replace(request, weight=self._weights[tenant_id])
        patience = rng.randrange(30) if rng.random() < 0.15 else None
        return Arrival(step, request, patience)


def _figures(world: World, books: ServiceBooks, limit: float) -> Figures:
    asked = list(world.asked.values())
    codes = [each.error.code for each in asked if each.error is not None]
    return Figures(
        num_schedules=1,
        num_steps=world.num_steps,
        num_requests=len(asked),
        num_aborted=sum(each.finish_reason is FinishReason.ABORT for each in asked),
        num_stopped=sum(each.finish_reason is FinishReason.STOP for each in asked),
        num_failed_loads=codes.count("adapter_corrupt"),
        num_refused=sum(map(codes.count, ("adapter_too_large", "request_too_large"))),
        num_preempted=world.core.swapping.num_preempted,
        num_swapped=world.core.swapping.num_restored,
        num_contests=books.longest > limit,
        worst_of_bound=books.worst / limit,
    )


def _ref(tenant_id: str, number: int) -> AdapterRef:
    return AdapterRef(
        tenant_id=tenant_id, digest=f"sha256:{number}", locator=f"{tenant_id}/{number}"
    )
