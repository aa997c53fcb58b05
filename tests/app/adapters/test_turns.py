"""Turns: no more at once than there are, and nobody waits for one for ever."""

from __future__ import annotations

import asyncio

import pytest

from app.adapters.turns import Turns
from app.errors import UnavailableError


async def test_whoever_waits_for_a_turn_is_told_in_time_that_there_is_none() -> None:
    turns = Turns(1, timeout_s=0.01)
    async with turns.take():
        with pytest.raises(UnavailableError) as refused:
            async with turns.take():
                pytest.fail("two have a turn")
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
    async with turns.take():  # the control: the one that was not had is not lost
        pass


async def test_a_turn_is_given_back_however_it_ends() -> None:
    turns = Turns(1, timeout_s=5.0)

    async def fail() -> None:
        async with turns.take():
            raise ValueError

    assert all(await asyncio.gather(*(fail() for _ in range(3)), return_exceptions=True))
    async with turns.take():
        waiting = asyncio.create_task(turns.take().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
    async with turns.take():
        pass
