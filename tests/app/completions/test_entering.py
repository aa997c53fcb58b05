"""Who comes at once does not find the same short queue."""

from __future__ import annotations

from contextlib import ExitStack

from app.completions.entering import Ahead, Entering
from engine.transport.load import QueueLoad

NOBODY = QueueLoad(num_queued=0, num_tenants=0, num_own=0, requests_per_s=10.0)
MAX_WAIT_S = 2.0


def test_each_finds_those_who_entered_before_it() -> None:
    entering = Entering()
    with entering.enter("ten_a", 2) as first, entering.enter("ten_b", 1) as second:
        assert first.ahead == Ahead(num=0, num_own=0, num_tenants=0)
        assert second.ahead == Ahead(num=2, num_own=0, num_tenants=1)
        with entering.enter("ten_a", 1) as third:
            assert third.ahead == Ahead(num=3, num_own=2, num_tenants=2)
        first.enqueued()
        with entering.enter("ten_a", 1) as fourth:
            assert fourth.ahead == Ahead(num=2, num_own=1, num_tenants=2), "the queue has one"
    with entering.enter("ten_a", 1) as last:
        assert last.ahead == Ahead(num=0, num_own=0, num_tenants=0)


def test_a_crowd_that_comes_at_once_is_told_to_wait_as_in_the_queue() -> None:
    """20 of 100 wait no longer than two seconds at ten a second. The control: before, all did."""
    entering = Entering()
    with ExitStack() as stack:
        crowd = [stack.enter_context(entering.enter("ten_a", 1)) for _ in range(100)]
    waits = [each.ahead.and_queued(NOBODY).expected_wait_s() for each in crowd]
    assert sum(wait is not None and wait <= MAX_WAIT_S for wait in waits) == 21
    assert NOBODY.expected_wait_s() == 0.0


def test_another_tenants_crowd_counts_for_no_more_than_its_turns() -> None:
    load = Ahead(num=100, num_own=0, num_tenants=1).and_queued(NOBODY)
    assert load.expected_wait_s() == 0.1
