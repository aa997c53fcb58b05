from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from app.adapters.resolver import ResolvedModel
from app.completions.choice import Choice, Delta
from app.completions.connection import ClientGoneError, while_connected
from app.completions.responses import Head
from app.completions.service import Answer
from app.completions.service_class import ServiceClass
from app.completions.shapes import ChatShape, Shape, TextShape
from app.completions.streaming import DONE, KEEPALIVE, frames
from app.completions.tokenizer import Tokenizer
from app.errors import UnavailableError
from engine.messages import ServiceTier
from tests.builders.principals import make_principal
from tests.builders.requests import make_request

HEAD = Head("id", 1, "m", "fp")
PRINCIPAL = make_principal()
ASKED = ServiceClass(ServiceTier.DEFAULT, 60.0)
SHAPES = [ChatShape(HEAD), TextShape(HEAD)]


@pytest.fixture
def answer(tiny_base_folder: Path) -> Answer:
    choice = Choice(0, Tokenizer.from_folder(tiny_base_folder).start_detokenizer(), [], [])
    return Answer(PRINCIPAL, ResolvedModel("m"), ASKED, HEAD, [make_request()], [choice], 1)


class Generated:
    """Yields what it is told to, raises what it is told to, and knows whether it was closed."""

    def __init__(self, *steps: list[Delta] | Exception) -> None:
        self.steps = steps
        self.is_closed = False

    async def run(self) -> AsyncGenerator[list[Delta], None]:
        try:
            for step in self.steps:
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.is_closed = True


async def collected(shape: Shape, answer: Answer, generated: Generated) -> list[bytes]:
    return [data async for data in frames(shape, answer, generated.run())]


async def test_silence_is_filled_with_comments_and_the_roles_do_not_wait_for_text(
    answer: Answer,
) -> None:
    generated = Generated([], [], [Delta(0, "hi")], [Delta(0, "", "stop")])
    chat = await collected(SHAPES[0], answer, generated)
    assert b'"role":"assistant"' in chat[0]
    assert chat[1] == KEEPALIVE
    assert chat[-1] == DONE
    text = await collected(SHAPES[1], answer, generated)
    assert text[:2] == [KEEPALIVE, KEEPALIVE]


@pytest.mark.parametrize("shape", SHAPES)
async def test_text_that_is_held_back_makes_no_event(shape: Shape, answer: Answer) -> None:
    generated = Generated([Delta(0, "a")], [Delta(0, "")], [Delta(0, "b", "stop")])
    found = await collected(shape, answer, generated)
    assert len(found) == 3
    assert found[-1] == DONE


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_error_before_the_first_event_is_raised(shape: Shape, answer: Answer) -> None:
    with pytest.raises(UnavailableError):
        await collected(shape, answer, Generated(UnavailableError(code="engine_lost")))


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_error_after_it_is_the_last_event(shape: Shape, answer: Answer) -> None:
    generated = Generated([Delta(0, "a")], UnavailableError("Gone.", code="engine_lost"))
    found = await collected(shape, answer, generated)
    assert found[-1] == (
        b'data: {"error":{"message":"Gone.","type":"server_error","param":null,'
        b'"code":"engine_lost"}}\n\n'
    )
    assert generated.is_closed


async def test_closing_the_frames_closes_what_makes_them(answer: Answer) -> None:
    generated = Generated([Delta(0, "a")], [Delta(0, "b")])
    stream = frames(SHAPES[0], answer, generated.run())
    await anext(stream)
    await stream.aclose()
    assert generated.is_closed


async def test_work_is_cancelled_and_cleaned_up_when_the_client_goes() -> None:
    events: list[str] = []
    started = asyncio.Event()

    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            events.append("cleaned up")

    async def receive() -> dict[str, Any]:
        await started.wait()
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGoneError):
        await while_connected(receive, work())
    assert events == ["cleaned up"]


async def test_work_for_a_client_that_stays_is_done_and_its_error_is_its_own() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def fails() -> None:
        raise UnavailableError

    assert await while_connected(receive, asyncio.sleep(0, "done")) == "done"
    with pytest.raises(UnavailableError):
        await while_connected(receive, fails())


async def test_work_that_loses_a_cancellation_is_cancelled_again() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def deaf() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    with pytest.raises(ClientGoneError):
        await while_connected(receive, deaf())
