"""What a tenant is told to expect of the queue, and that it is its own doing."""

from __future__ import annotations

import pytest

from engine.transport.load import QueueLoad


def wait_s(
    *, queued: int, tenants: int, own: int, weight: float = 1.0, is_flex: bool = False
) -> float | None:
    load = QueueLoad(queued, tenants, own, requests_per_s=10.0)
    return load.expected_wait_s(weight=weight, is_flex=is_flex)


def test_who_waits_with_nobody_waits_for_what_others_queued_once_at_most() -> None:
    assert wait_s(queued=1000, tenants=1, own=0) == pytest.approx(0.1)
    assert wait_s(queued=1000, tenants=50, own=0) == pytest.approx(5.0)


def test_who_queued_much_waits_for_it_and_for_the_others_turns() -> None:
    assert wait_s(queued=1000, tenants=2, own=999) == pytest.approx(100.0)
    assert wait_s(queued=100, tenants=2, own=10) == pytest.approx((11 * 2 - 1) / 10)


def test_with_more_weight_fewer_of_the_others_come_before() -> None:
    assert wait_s(queued=100, tenants=2, own=10, weight=2.0) == pytest.approx((11 * 1.5 - 1) / 10)


def test_flex_waits_for_all() -> None:
    assert wait_s(queued=1000, tenants=50, own=0, is_flex=True) == pytest.approx(100.0)


@pytest.mark.parametrize("pace", [None, 0.0])
def test_without_a_pace_nothing_is_expected(pace: float | None) -> None:
    assert QueueLoad(100, 1, 100, pace).expected_wait_s() is None
