"""A reserved share: at least so much while something waits, and nothing held back while not."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from msgspec import structs

from engine.fair_order import FairOrder
from engine.messages import EngineRequest
from engine.policy import choose_victim
from engine.reserved_share import MEMORY_TOKENS, ReservedShares
from engine.sequence import Sequence
from tests.builders.engines import make_request
from tests.stub_engine.clock import VirtualClock

PROMPT = 200
NUM_OTHERS = 9
BACKLOG = 3


def ask(number: int, tenant_id: str, share: float) -> EngineRequest:
    made = make_request(f"{tenant_id}{number}", [1] * PROMPT, tenant_id=tenant_id)
    return structs.replace(made, reserved_share=share)


class Seat:
    """One seat; the tenants named always have something that waits."""

    def __init__(self, shares: dict[str, float]) -> None:
        self._shares = shares
        self._order = FairOrder(0.5, 1024, VirtualClock())
        self._num_added = 0
        self.service: Counter[str] = Counter()

    def add(self, tenant_id: str) -> None:
        self._num_added += 1
        request = ask(self._num_added, tenant_id, self._shares.get(tenant_id, 0.0))
        self._order.push(Sequence(request, self._num_added))

    def serve(self, num_generated: int = 0) -> str:
        sequence = next(self._order.in_turn(lambda _: True))
        tenant_id = sequence.request.tenant_id
        self._order.admit(sequence, 0)
        self._order.charge_generated([tenant_id] * num_generated)
        self._order.suspend(sequence)
        self.service[tenant_id] += PROMPT + 2 * num_generated
        return tenant_id

    def serve_many(self, tenants: list[str], num: int, rng: random.Random) -> dict[str, float]:
        """Each of these tenants' part of the service that they got."""
        before = Counter(self.service)
        for tenant_id in tenants * BACKLOG:
            self.add(tenant_id)
        for _ in range(num):
            self.add(self.serve(rng.randrange(160)))
        got = {tenant_id: self.service[tenant_id] - before[tenant_id] for tenant_id in tenants}
        return {tenant_id: amount / sum(got.values()) for tenant_id, amount in got.items()}


OTHERS = [f"other {i}" for i in range(NUM_OTHERS)]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_backlogged_tenant_gets_its_reserved_share_among_many(share: float) -> None:
    parts = Seat({"gold": share}).serve_many(["gold", *OTHERS], 3000, random.Random(1))
    assert parts["gold"] == pytest.approx(share, abs=0.02)
    for other in OTHERS:
        assert parts[other] == pytest.approx((1 - share) / NUM_OTHERS, abs=0.02)


def test_control_without_a_share_it_gets_its_turn_and_no_more() -> None:
    parts = Seat({}).serve_many(["gold", *OTHERS], 3000, random.Random(1))
    assert parts["gold"] == pytest.approx(1 / (1 + NUM_OTHERS), abs=0.02)


def test_a_share_below_its_turn_changes_nothing() -> None:
    parts = Seat({"gold": 0.2}).serve_many(["gold", "other"], 3000, random.Random(2))
    assert parts["gold"] == pytest.approx(0.5, abs=0.02)


def test_several_reserved_shares_are_all_kept() -> None:
    shares = {"gold": 0.5, "silver": 0.3}
    parts = Seat(shares).serve_many(["gold", "silver", *OTHERS], 5000, random.Random(3))
    for tenant_id, share in shares.items():
        assert parts[tenant_id] == pytest.approx(share, abs=0.02)


def test_what_was_free_to_be_had_is_not_paid_back() -> None:
    seat = Seat({"gold": 0.3})
    assert seat.serve_many(["gold"], 2000, random.Random(4)) == {"gold": 1.0}
    for other in OTHERS:
        seat.add(other)
    before = Counter(seat.service)
    for _ in range(300):
        seat.add(seat.serve(40))
    got = seat.service["gold"] - before["gold"]
    total = sum(seat.service.values()) - sum(before.values())
    assert got >= 0.3 * total - (MEMORY_TOKENS + 3 * (PROMPT + 320))


def test_nobody_saves_up_its_share_while_away() -> None:
    seat = Seat({"gold": 0.5})
    seat.serve_many(OTHERS, 2000, random.Random(5))
    for _ in range(40):
        seat.add("gold")
    served = [seat.serve() for _ in range(40)]
    assert 18 <= served.count("gold") <= 24


def test_a_tag_lags_exactly_while_less_than_the_share_was_had() -> None:
    shares = ReservedShares()
    shares.put("gold", 0.5)
    assert not shares.is_due("gold") and not shares.is_due("nobody")
    shares.charge("other", 10.0)
    assert shares.is_due("gold")
    assert shares.charge("gold", 10.0), "its share paid"
    assert not shares.is_due("gold"), "it has had half of what was served"
    shares.put("gold", 0.0)
    shares.charge("other", 10.0)
    assert not shares.is_due("gold")


@pytest.mark.parametrize(("share", "victim"), [(0.9, "other"), (0.0, "gold")])
def test_who_is_owed_a_share_is_not_preempted_before_others(share: float, victim: str) -> None:
    order = FairOrder(0.5, 1024, VirtualClock())
    running = [Sequence(ask(0, "gold", share), 0), Sequence(ask(1, "other", 0.0), 1)]
    for sequence in running:
        order.push(sequence)
    for sequence in list(order.in_turn(lambda _: True)):
        order.admit(sequence, 0)
    order.charge_generated(["gold"] * 4 + ["other"] * 2)
    assert choose_victim(running, order.service).request.tenant_id == victim
