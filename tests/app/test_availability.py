"""Who is late is asked no more until it is back; who errs has answered."""

from __future__ import annotations

import asyncio
import time

import pytest

import app.promptly
from app.availability import Availability
from app.errors import NotFoundError, UnavailableError
from app.promptly import TooLateError, promptly
from tests.builders.waiting import until

TIMEOUT_S = 0.05


class Dependency:
    """Answers while `is_there`; counts who asked."""

    def __init__(self) -> None:
        self.is_there = asyncio.Event()
        self.is_there.set()
        self.num_asked = 0
        self.num_done = 0

    async def answer(self) -> str:
        self.num_asked += 1
        await self.is_there.wait()
        self.num_done += 1
        return "answer"

    async def take(self) -> None:
        await self.answer()

    async def refuse(self) -> None:
        raise NotFoundError

    def availability(self) -> Availability:
        return Availability("it", self.answer, timeout_s=TIMEOUT_S)


async def test_who_is_late_is_not_asked_again_until_a_probe_is_answered() -> None:
    dependency = Dependency()
    availability = dependency.availability()
    assert await availability.ask(dependency.answer) == "answer"
    dependency.is_there.clear()
    with pytest.raises(UnavailableError):
        await availability.ask(dependency.answer)
    num_asked, began_at = dependency.num_asked, time.monotonic()
    for _ in range(100):
        with pytest.raises(UnavailableError):
            await availability.ask(dependency.answer)
    assert time.monotonic() - began_at < TIMEOUT_S
    assert dependency.num_asked <= num_asked + 1  # the probe

    dependency.is_there.set()
    await until(lambda: not availability.is_away)
    assert await availability.ask(dependency.answer) == "answer"
    await availability.close()


async def test_a_refusal_is_an_answer() -> None:
    dependency = Dependency()
    availability = dependency.availability()
    with pytest.raises(NotFoundError):
        await availability.ask(dependency.refuse)
    assert not availability.is_away


async def test_what_is_told_to_who_is_away_goes_on_by_itself() -> None:
    dependency = Dependency()
    availability = dependency.availability()
    dependency.is_there.clear()
    for _ in range(2):
        began_at = time.monotonic()
        await availability.tell(dependency.take)
        assert time.monotonic() - began_at < 10 * TIMEOUT_S
    assert availability.is_away and dependency.num_done == 0
    dependency.is_there.set()
    await until(lambda: dependency.num_done >= 2)
    await availability.close()


TURN_S = 0.03
NUM_TURNS = 5


async def _turns() -> str:
    """An answer that takes as many turns of the event loop, as round trips do."""
    for _ in range(NUM_TURNS):
        await asyncio.sleep(0)
    return "answer"


async def _asked_while_late() -> str:
    """Of a dependency that answers at once, while each turn of the loop takes half its time."""

    async def be_busy() -> None:
        while True:
            time.sleep(TURN_S)  # noqa: ASYNC251 (that is the point)
            await asyncio.sleep(0)

    busy = asyncio.create_task(be_busy())
    try:
        return await promptly(_turns(), TIMEOUT_S)
    finally:
        busy.cancel()


async def test_a_process_that_is_late_itself_calls_nobody_late() -> None:
    assert await _asked_while_late() == "answer"


async def test_control_a_wait_in_one_piece_calls_it_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.promptly, "SLICES", 1)
    with pytest.raises(TooLateError):
        await _asked_while_late()


async def test_who_never_answers_is_given_up_in_time() -> None:
    began_at = time.monotonic()
    with pytest.raises(TooLateError):
        await promptly(asyncio.Event().wait(), TIMEOUT_S)
    assert TIMEOUT_S <= time.monotonic() - began_at < 2 * TIMEOUT_S
