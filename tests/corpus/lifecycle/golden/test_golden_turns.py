"""Tenants whose golden prompts wait are served in turn, and one at a time each."""

from __future__ import annotations

from app.rollouts.golden_turns import Turns


def test_a_tenant_with_many_rollouts_waits_for_those_that_were_served_longer_ago() -> None:
    turns, served = Turns(), []
    for _ in range(6):
        tenant = turns.take(["many", "one", "other"])  # by how long they wait: always the same
        assert tenant is not None
        turns.end(tenant)
        served.append(tenant)
    assert served == ["many", "one", "other"] * 2


def test_a_tenant_has_one_turn_at_a_time() -> None:
    turns = Turns()
    assert turns.take(["many", "one"]) == "many"
    assert turns.take(["many", "one"]) == "one"
    assert turns.take(["many", "one"]) is None
    turns.end("many")
    assert turns.take(["many", "one"]) == "many"


def test_who_comes_new_is_served_before_who_had_a_turn() -> None:
    turns = Turns()
    for _ in range(3):
        assert turns.take(["many"]) == "many"
        turns.end("many")
    assert turns.take(["many", "new"]) == "new"
