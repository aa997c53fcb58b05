"""A request for an adapter that is not here waits no longer than the stated bound."""

from __future__ import annotations

from math import inf

import pytest

from tests.simulate.cold_adapter import bound_s, wait_for_cold_adapter
from tests.simulate.conftest import Record

MAX_AGE_S = 0.5
SEEDS = range(40)


@pytest.mark.parametrize("is_one_tenants", [True, False], ids=["one tenant", "five tenants"])
def test_a_cold_adapter_is_served_within_the_bound_while_four_hot_ones_are_hammered(
    is_one_tenants: bool, record_figure: Record
) -> None:
    longest = max(
        wait_for_cold_adapter(seed, is_one_tenants=is_one_tenants, max_age_s=MAX_AGE_S)
        for seed in SEEDS
    )
    assert longest <= bound_s(MAX_AGE_S)
    whose = "its own tenant's" if is_one_tenants else "others'"
    record_figure(
        f"cold adapter beside four hot ones of {whose}: waits {longest:.2f} s at the longest of "
        f"{len(SEEDS)}, bound {bound_s(MAX_AGE_S):.2f} s"
    )


def test_control_without_ageing_the_bound_is_broken() -> None:
    waits = [wait_for_cold_adapter(seed, is_one_tenants=True, max_age_s=inf) for seed in SEEDS]
    assert sum(wait > bound_s(MAX_AGE_S) for wait in waits) > len(SEEDS) // 4
