"""A reserved share in a whole engine, in virtual time: kept while backlogged, free while not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import pytest
from msgspec import structs

from engine.fair_order import GENERATED_PRICE, PROMPT_PRICE
from engine.reserved_share import MEMORY_TOKENS
from tests.builders.engines import make_request
from tests.simulate.conftest import Record
from tests.simulate.world import BLOCK_SIZE, World
from tests.stub_engine.runner import StepCosts

COSTS = StepCosts(step_s=0.008, token_s=0.0002)
NUM_PAGES = 160
NUM_SEATS = 16
PROMPT = (8, 40)
OUTPUT = (4, 24)
BACKLOG = 4
OTHERS = [f"other {i}" for i in range(9)]
GOLD = "gold"


@dataclass
class Load:
    """Tenants of whom each always has `BACKLOG` requests more than run, while it is `present`."""

    seed: int
    shares: Mapping[str, float]
    present: set[str]
    world: World = field(
        default_factory=lambda: World(
            num_pages=NUM_PAGES,
            costs=COSTS,
            max_num_seqs=NUM_SEATS,
            max_num_batched_tokens=64,
            prefix_caching=False,
        )
    )
    service: Counter[str] = field(default_factory=Counter)
    least_ahead: float = 0.0
    """The most by which GOLD was behind its share of the service since some moment."""
    _most_ahead: float = 0.0
    _num_asked: int = 0

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)

    def run(self, seconds: float) -> Counter[str]:
        """What each tenant gets in so many seconds."""
        before, end = Counter(self.service), self.world.clock() + seconds
        while self.world.clock() < end:
            self._ask()
            self.world.step()
            self._count()
        return self.service - before

    def start_books(self) -> None:
        self.least_ahead = 0.0
        self._most_ahead = self._ahead()

    def _ahead(self) -> float:
        return self.service[GOLD] - self.shares.get(GOLD, 0.0) * sum(self.service.values())

    def _ask(self) -> None:
        waiting = Counter(each.request.tenant_id for each in self.world.core.scheduler._waiting)
        for tenant_id in sorted(self.present):
            for _ in range(BACKLOG - waiting[tenant_id]):
                self._num_asked += 1
                made = make_request(
                    f"{tenant_id} {self._num_asked}",
                    [1] * self._rng.randint(*PROMPT),
                    max_tokens=self._rng.randint(*OUTPUT),
                    tenant_id=tenant_id,
                )
                share = self.shares.get(tenant_id, 0.0)
                self.world.add(structs.replace(made, reserved_share=share))

    def _count(self) -> None:
        for sequence in self.world.runner.started:
            self.service[sequence.request.tenant_id] += int(
                PROMPT_PRICE * sequence.num_prompt_tokens
            )
        self.world.runner.started.clear()
        for output in self.world.seen:
            tenant_id = self.world.asked[output.request_id].request.tenant_id
            self.service[tenant_id] += int(GENERATED_PRICE * len(output.token_ids))
        self._most_ahead = max(self._most_ahead, self._ahead())
        self.least_ahead = max(self.least_ahead, self._most_ahead - self._ahead())


def part(got: Mapping[str, int], tenant_id: str) -> float:
    return got[tenant_id] / sum(got.values())


BOUND = MEMORY_TOKENS + 2 * max(PROMPT_PRICE * PROMPT[1], GENERATED_PRICE * NUM_PAGES * BLOCK_SIZE)
"""What it may have to pay back, and as between two tenants in turn: what runs was let in before."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_backlogged_tenant_gets_its_reserved_share_over_any_time(
    seed: int, share: float, record_figure: Record
) -> None:
    load = Load(seed, {GOLD: share}, {GOLD, *OTHERS})
    load.run(2.0)
    load.start_books()
    got = load.run(60.0)
    assert part(got, GOLD) >= share - 0.02
    assert load.least_ahead <= BOUND
    record_figure(
        f"reserved share {share}: got {part(got, GOLD):.3f}, at most "
        f"{load.least_ahead / BOUND:.2f} of the bound behind"
    )


def test_control_without_the_share_it_gets_a_tenth() -> None:
    load = Load(0, {}, {GOLD, *OTHERS})
    assert part(load.run(30.0), GOLD) < 0.15


def test_two_shares_that_take_all_are_both_kept() -> None:
    load = Load(1, {GOLD: 0.5, "silver": 0.4}, {GOLD, "silver", *OTHERS})
    load.run(2.0)
    got = load.run(60.0)
    assert part(got, GOLD) >= 0.48 and part(got, "silver") >= 0.38


def test_what_a_share_leaves_is_had_by_the_others_and_what_they_leave_by_it() -> None:
    alone = sum(Load(2, {}, set(OTHERS)).run(20.0).values())
    load = Load(2, {GOLD: 0.6}, set(OTHERS))
    assert sum(load.run(20.0).values()) >= 0.99 * alone, "nothing is held back for who is away"
    load.present = {GOLD}
    load.run(5.0)
    assert part(load.run(20.0), GOLD) == 1.0
    load.present = {GOLD, *OTHERS}
    load.run(5.0)
    assert part(load.run(20.0), GOLD) >= 0.57, "and it hardly pays back what it had alone"
