"""The host's bytes are never exceeded; what is held stays, what is only kept makes room."""

from __future__ import annotations

import random

import pytest

from engine.host_tier import HostTier


def test_what_is_kept_leaves_for_what_is_held_the_least_recently_used_first() -> None:
    tier = HostTier[str](max_bytes=10)
    for name in ("a", "b", "c"):
        assert tier.keep(name, name.upper(), 3)
    assert tier.find("a") == "A"
    tier.hold("sequence", 4)
    assert [tier.find(name) for name in ("a", "b", "c")] == ["A", None, "C"]
    tier.hold("another", 5)
    assert [tier.find(name) for name in ("a", "b", "c")] == [None, None, None]
    assert tier.num_held_bytes == 9


def test_what_is_held_leaves_for_nobody() -> None:
    tier = HostTier[str](max_bytes=10)
    tier.hold("sequence", 8)
    assert not tier.can_hold(3)
    assert not tier.keep("a", "A", 3)
    with pytest.raises(AssertionError, match="can_hold"):
        tier.hold("another", 3)
    tier.free("sequence")
    assert tier.keep("a", "A", 3)
    assert (tier.num_held_bytes, tier.num_kept_bytes) == (0, 3)


def test_a_key_that_is_kept_again_is_counted_once() -> None:
    tier = HostTier[str](max_bytes=10)
    assert tier.keep("a", "old", 6) and tier.keep("a", "new", 7)
    assert tier.find("a") == "new" and tier.num_kept_bytes == 7
    assert not tier.keep("a", "too large", 11)
    assert tier.find("a") is None, "what the key had is outdated"


@pytest.mark.parametrize("seed", range(20))
def test_the_limit_holds_whatever_is_done(seed: int) -> None:
    rng = random.Random(seed)
    tier = HostTier[int](max_bytes=40)
    held: dict[int, int] = {}
    for number in range(300):
        num_bytes, key = rng.randrange(20), rng.randrange(12)
        if rng.random() < 0.3 and tier.can_hold(num_bytes):
            tier.hold(number, num_bytes)
            held[number] = num_bytes
        elif held and rng.random() < 0.4:
            oldest = next(iter(held))
            tier.free(oldest)
            del held[oldest]
        elif rng.random() < 0.2:
            tier.drop(key)
        else:
            is_kept = tier.keep(key, number, num_bytes)
            assert is_kept is (sum(held.values()) + num_bytes <= 40)
            assert tier.find(key) == (number if is_kept else None)
        tier.check_integrity()
        assert tier.num_held_bytes == sum(held.values())
