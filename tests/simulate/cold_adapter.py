"""Four hot adapters are hammered; one request comes for an adapter that is not here.

The pool has room for the hot ones and little more, and whoever gets an answer asks again at once:
an engine that lets whatever fits run would never have the pages for the fifth. Case B03 of the
field (sgl-project/sglang#15129).
"""

from __future__ import annotations

from itertools import count
from random import Random

from engine.messages import AdapterRef
from tests.builders.engines import make_request
from tests.simulate.world import World
from tests.stub_engine.runner import StepCosts

NUM_HOT = 4
ADAPTER_PAGES = 8
NUM_PAGES = NUM_HOT * ADAPTER_PAGES + 20
LOAD_S = 0.2
MAX_TOKENS = 6
MAX_BATCHED = 32
COSTS = StepCosts(step_s=0.01, token_s=0.0005)
MAX_STEP_S = COSTS.of(MAX_BATCHED)


def bound_s(max_age_s: float) -> float:
    """From the moment that a request is added to its first step.

    Its adapter is read, and others pass it over until it is old; then it bars the way, and whoever
    runs ends: after MAX_TOKENS steps, or twice as many where one was preempted.
    """
    return max(LOAD_S, max_age_s) + 2 * MAX_TOKENS * MAX_STEP_S


class Hammer:
    """Clients of the hot adapters; each asks again as soon as it is answered."""

    def __init__(
        self, world: World, refs: list[AdapterRef], tenants: list[str], rng: Random
    ) -> None:
        self.world = world
        self._refs = refs
        self._tenants = tenants
        self._rng = rng
        self._numbers = count()
        for _ in range(5):
            for index in range(NUM_HOT):
                self._ask(index)

    def step(self) -> None:
        self.world.step()
        for output in self.world.seen:
            if output.finish_reason is not None and output.request_id.startswith("hot"):
                self._ask(int(output.request_id.split()[1]))

    def _ask(self, index: int) -> None:
        request = make_request(
            f"hot {index} {next(self._numbers)}",
            [self._rng.randrange(128) for _ in range(self._rng.randint(1, 2))],
            adapter=self._refs[index],
            max_tokens=self._rng.randint(2, MAX_TOKENS),
            tenant_id=self._tenants[index],
        )
        self.world.add(request)


def wait_for_cold_adapter(seed: int, *, is_one_tenants: bool, max_age_s: float) -> float:
    """Seconds that the request waits for its first step; at most three times the bound, and more
    is said to be infinite."""
    rng = Random(seed)
    names = ["all"] * 5 if is_one_tenants else [f"t{i}" for i in range(5)]
    refs = [AdapterRef(tenant_id=name, digest=f"L{i}", locator="") for i, name in enumerate(names)]
    world = World(
        num_pages=NUM_PAGES,
        costs=COSTS,
        pages_of=lambda ref: ADAPTER_PAGES,
        delay_s=lambda ref: LOAD_S,
        max_num_seqs=20,
        max_num_batched_tokens=MAX_BATCHED,
        max_age_s=max_age_s,
        prefix_caching=False,
    )
    hammer = Hammer(world, refs[:NUM_HOT], names[:NUM_HOT], rng)
    for _ in range(40 + rng.randrange(40)):
        hammer.step()
    cold = make_request("cold", [1] * 3, adapter=refs[-1], max_tokens=4, tenant_id=names[-1])
    world.add(cold)
    deadline = world.clock() + 3 * bound_s(0.5)
    while "cold" not in world.runner.started_at:
        if world.clock() > deadline:
            return float("inf")
        hammer.step()
    return world.runner.started_at["cold"] - world.asked["cold"].added_at
