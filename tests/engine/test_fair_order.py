"""The virtual token counter: shares, prices, lifts, and that nobody is overtaken for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf

import pytest
from msgspec import structs

from engine.fair_order import MIN_FORGETTING, FairOrder
from engine.sequence import Sequence
from tests.builders.engines import make_request
from tests.stub_engine.clock import VirtualClock


class Queue:
    """A `FairOrder` with an engine of one seat: admits, lets the sequence generate, and ends it."""

    def __init__(self, max_age_s: float = 0.5, slack_tokens: float = 1024) -> None:
        self.clock = VirtualClock()
        self.order = FairOrder(max_age_s, slack_tokens, self.clock)
        self.num_added = 0

    def add(self, tenant_id: str, num_prompt: int = 10, **request: float) -> Sequence:
        self.num_added += 1
        name = f"{tenant_id}{self.num_added}"
        made = make_request(name, [1] * num_prompt, tenant_id=tenant_id)
        sequence = Sequence(structs.replace(made, **request), self.num_added)
        self.order.push(sequence)
        return sequence

    def serve(self, num_generated: int = 0, num_load_tokens: int = 0) -> str:
        """Admit whoever's turn it is; returns the tenant."""
        sequence = next(self.order.in_turn(anything))
        self.order.admit(sequence, num_load_tokens)
        self.order.charge_generated([sequence.request.tenant_id] * num_generated)
        self.order.suspend(sequence)
        return sequence.request.tenant_id


def anything(sequence: Sequence) -> bool:
    return True


def unless(*unready: Sequence) -> Callable[[Sequence], bool]:
    return lambda sequence: sequence not in unready


def test_tenants_take_turns_however_many_requests_came_before() -> None:
    queue = Queue()
    for _ in range(50):
        queue.add("noisy")
    queue.serve()
    for _ in range(3):
        queue.add("late")
    assert [queue.serve() for _ in range(6)].count("late") == 3


def test_a_tenants_own_requests_keep_their_order() -> None:
    queue = Queue()
    added = [queue.add("a") for _ in range(5)]
    assert list(queue.order.in_turn(anything)) == added


def test_service_is_tokens_and_a_generated_one_costs_twice() -> None:
    queue = Queue()
    for _ in range(300):
        queue.add("prompts", num_prompt=20)
        queue.add("outputs", num_prompt=1)
    served: Counter[str] = Counter()
    for _ in range(200):
        sequence = next(queue.order.in_turn(anything))
        queue.order.admit(sequence, 0)
        served[sequence.request.tenant_id] += 1
        if sequence.request.tenant_id == "outputs":
            queue.order.charge_generated(["outputs"] * 2)
    # 20 against 1 + 2 * 2: four "outputs" for each "prompts".
    assert served["outputs"] == pytest.approx(4 * served["prompts"], abs=4)


def test_twice_the_weight_is_twice_the_service() -> None:
    queue = Queue()
    for _ in range(200):
        queue.add("light")
        queue.add("heavy", weight=2.0)
    served = Counter(queue.serve(num_generated=5) for _ in range(150))
    assert served["heavy"] == pytest.approx(2 * served["light"], abs=2)


def test_a_load_is_charged_to_the_tenant_that_causes_it() -> None:
    queue = Queue()
    for _ in range(100):
        queue.add("cold")
        queue.add("warm")
    served: Counter[str] = Counter()
    for _ in range(60):
        sequence = next(queue.order.in_turn(anything))
        served[sequence.request.tenant_id] += 1
        queue.order.admit(sequence, 40 if sequence.request.tenant_id == "cold" else 0)
    assert served["warm"] == pytest.approx(5 * served["cold"], abs=5)


def test_what_is_computed_again_is_free() -> None:
    queue = Queue()
    sequence = queue.add("a", num_prompt=100)
    queue.serve()
    queue.order.push(sequence)  # preempted
    before = queue.order.service("a")
    assert before == 100
    queue.serve()
    assert queue.order.service("a") == before


def test_a_prompt_that_was_paid_for_at_another_engine_is_free() -> None:
    queue = Queue()
    queue.add("a", num_prompt=100, delivered_token_ids=[1])
    queue.serve()
    assert queue.order.service("a") == 0


def test_whoever_was_away_gets_no_credit_for_it() -> None:
    queue = Queue()
    for _ in range(100):
        queue.add("busy")
    for _ in range(50):
        queue.serve()
    for _ in range(40):
        queue.add("away")
    served = [queue.serve() for _ in range(20)]
    assert served.count("busy") == pytest.approx(10, abs=1)


def test_whose_adapters_were_all_on_their_way_gets_no_credit_for_it() -> None:
    queue = Queue()
    loading = [queue.add("loading") for _ in range(40)]
    for _ in range(100):
        queue.add("busy")
    for _ in range(50):
        sequence = next(queue.order.in_turn(unless(*loading)))
        queue.order.admit(sequence, 0)
    served = [queue.serve() for _ in range(20)]
    assert served.count("busy") == pytest.approx(10, abs=1)


@pytest.mark.parametrize("num_others", [1, 3])
def test_newcomers_without_end_do_not_keep_a_waiting_tenant_from_its_turn(num_others: int) -> None:
    queue = Queue()
    queue.add("waiting")
    queue.serve(num_generated=250)
    for tenant in ["waiting", *(f"other {i}" for i in range(num_others))]:
        queue.add(tenant)
    for number in range(2000):
        queue.add(f"new {number}")
        if queue.serve() == "waiting":
            assert number > 10, "it had much more than the others"
            return
    raise AssertionError("it starved")


def test_control_without_a_rising_level_newcomers_starve_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admit = FairOrder.admit

    def admit_at_a_fixed_level(self: FairOrder, sequence: Sequence, num_load_tokens: int) -> None:
        level = self._level
        admit(self, sequence, num_load_tokens)
        self._level = level

    monkeypatch.setattr(FairOrder, "admit", admit_at_a_fixed_level)
    with pytest.raises(AssertionError, match="starved"):
        test_newcomers_without_end_do_not_keep_a_waiting_tenant_from_its_turn(1)


def test_who_does_not_fit_is_passed_over_until_it_is_old() -> None:
    queue = Queue(max_age_s=0.5)
    big, small = queue.add("a"), queue.add("b")
    queue.clock.sleep(0.4)
    assert list(queue.order.in_turn(anything)) == [big, small]
    queue.clock.sleep(0.1)
    assert list(queue.order.in_turn(anything)) == [big]


def test_who_does_not_fit_is_passed_over_by_those_within_the_slack_alone() -> None:
    queue = Queue(max_age_s=inf, slack_tokens=35)
    big = queue.add("a", num_prompt=1000)
    for _ in range(20):
        queue.add("b")
    num_passed = 0
    while (order := list(queue.order.in_turn(anything)))[1:]:
        assert order[0] is big
        queue.order.admit(order[1], 0)
        num_passed += 1
    assert num_passed == 4, "at 40 tokens `b` is more than 35 ahead"


def test_a_preempted_sequence_is_as_old_as_it_was() -> None:
    queue = Queue(max_age_s=0.5)
    sequence = queue.add("a")
    queue.serve()
    queue.clock.sleep(1.0)
    queue.add("a")
    queue.order.push(sequence)
    assert list(queue.order.in_turn(anything)) == [sequence]


def test_tenants_that_have_left_are_forgotten_and_get_the_level_when_they_return() -> None:
    queue = Queue()
    for number in range(3 * MIN_FORGETTING):
        queue.add(f"t{number}")
        queue.add("always")
        queue.serve()
        queue.serve()
    assert len(queue.order._tenants) < 2 * MIN_FORGETTING
    assert queue.order.service("t0") == queue.order._level > 0


def test_an_empty_order_has_no_turns() -> None:
    order = FairOrder(0.5, 0, VirtualClock())
    assert list(order.in_turn(anything)) == [] and len(order) == 0 and list(order) == []
