"""What the registry said counts while it is away, for half a minute, and never against it."""

from __future__ import annotations

import pytest

from app.availability import Availability
from app.errors import ModelNotFoundError, UnavailableError
from app.registry_snapshot import MAX_AGE_S, RegistrySnapshot


class Registry:
    """Says `value`, or raises `error`."""

    def __init__(self) -> None:
        self.value: str | None = "v1"
        self.error: Exception | None = None
        self.now = 0.0

    async def ask(self) -> str | None:
        if self.error is not None:
            raise self.error
        return self.value

    def snapshot(self, max_entries: int = 10) -> RegistrySnapshot:
        availability = Availability("registry", self.ask, timeout_s=1.0)
        return RegistrySnapshot(availability, max_entries=max_entries, clock=lambda: self.now)


async def test_the_registry_is_asked_while_it_answers() -> None:
    registry = Registry()
    snapshot = registry.snapshot()
    assert await snapshot.look_up("a", registry.ask) == "v1"
    registry.value = "v2"
    assert await snapshot.look_up("a", registry.ask) == "v2"


async def test_what_it_said_counts_while_it_is_away_and_no_longer_than_half_a_minute() -> None:
    registry = Registry()
    snapshot = registry.snapshot()
    assert not snapshot.is_held
    await snapshot.look_up("a", registry.ask)
    registry.error = UnavailableError()
    registry.now = MAX_AGE_S - 1
    assert snapshot.is_held
    assert await snapshot.look_up("a", registry.ask) == "v1"
    with pytest.raises(UnavailableError):
        await snapshot.look_up("never asked", registry.ask)
    registry.now = MAX_AGE_S
    assert not snapshot.is_held
    with pytest.raises(UnavailableError):
        await snapshot.look_up("a", registry.ask)


@pytest.mark.parametrize("denial", ["absent", "error", "forgotten"])
async def test_what_was_denied_or_revoked_since_is_not_served(denial: str) -> None:
    registry = Registry()
    snapshot = registry.snapshot()
    await snapshot.look_up("a", registry.ask)
    if denial == "absent":
        registry.value = None
        assert await snapshot.look_up("a", registry.ask) is None
    elif denial == "error":
        registry.error = ModelNotFoundError("a")
        with pytest.raises(ModelNotFoundError):
            await snapshot.look_up("a", registry.ask)
    else:
        snapshot.forget()
    registry.error = UnavailableError()
    with pytest.raises(UnavailableError):
        await snapshot.look_up("a", registry.ask)


async def test_it_is_bounded_and_forgets_the_oldest() -> None:
    registry = Registry()
    snapshot = registry.snapshot(max_entries=2)
    for name in ("a", "b", "a", "c"):
        await snapshot.look_up(name, registry.ask)
    registry.error = UnavailableError()
    assert await snapshot.look_up("a", registry.ask) == "v1"
    with pytest.raises(UnavailableError):
        await snapshot.look_up("b", registry.ask)
