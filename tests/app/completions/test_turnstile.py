"""Who was refused just now is refused again for next to nothing; nobody else is, nor for long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
import redis
from fastapi import APIRouter, FastAPI, Response
from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope, Send

from app.api import create_app
from app.completions.door import FEW
from app.completions.entering import Ahead
from app.completions.turnstile import (
    ASKING_S,
    KNOWN_S,
    REMEMBERED_S,
    RENEWED_S,
    SETTLED_S,
    Turnstile,
    TurnstileRoute,
)
from app.context import AppContext
from app.errors import ApiError, UnavailableError
from app.metrics.answers import AnswerMetrics
from engine.transport import keys
from tests.app.completions.test_chat_route import PATH, body
from tests.builders.operator import Tenant
from tests.builders.waiting import until

MAX_WAIT_S = 10.0
NOT_JSON = b"{"
OVERLOADED = UnavailableError(code="overloaded")


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


class Door:
    """What a turnstile asks: it says the same until told otherwise."""

    def __init__(self) -> None:
        self.says: ApiError | None = OVERLOADED
        self.num_asked = 0
        self.ahead = Ahead(0, 0, 0)

    async def __call__(self, ahead: Ahead) -> ApiError | None:
        self.num_asked += 1
        self.ahead = ahead
        return self.says


@pytest.fixture
def turnstile(seconds: Seconds) -> Turnstile:
    """It knows two keys, and one of them was refused."""
    turnstile = Turnstile(seconds)
    turnstile.learn(b"Bearer crowd", "key_crowd", "ten_crowd")
    turnstile.learn(b"Bearer quiet", "key_quiet", "ten_quiet")
    turnstile.remember("key_crowd", OVERLOADED, MAX_WAIT_S)
    return turnstile


@pytest.fixture
def door(turnstile: Turnstile) -> Door:
    """The crowd's key was refused by it."""
    door = Door()
    turnstile.remember("key_crowd", OVERLOADED, MAX_WAIT_S, door)
    return door


async def is_refused(turnstile: Turnstile, shown: bytes = b"Bearer crowd") -> bool:
    async with turnstile.passing(shown) as refusal:
        return refusal is not None


async def test_a_refusal_counts_for_its_key_and_for_a_moment(
    turnstile: Turnstile, seconds: Seconds
) -> None:
    async with turnstile.passing(b"Bearer crowd") as refusal:
        assert refusal is not None and refusal.code == "overloaded"
    assert not await is_refused(turnstile, b"Bearer quiet")
    assert not await is_refused(turnstile, b"Bearer nobody")
    seconds.now += 1.01 * REMEMBERED_S
    assert not await is_refused(turnstile)


async def test_after_that_one_asks_for_all(turnstile: Turnstile, seconds: Seconds) -> None:
    seconds.now += 1.01 * REMEMBERED_S
    assert not await is_refused(turnstile)
    assert await is_refused(turnstile)
    turnstile.remember("key_crowd", OVERLOADED, MAX_WAIT_S)
    seconds.now += 0.99 * REMEMBERED_S
    assert await is_refused(turnstile), "what it heard counts as long again"


async def test_who_is_let_in_lets_in_the_others(turnstile: Turnstile, seconds: Seconds) -> None:
    seconds.now += 1.01 * REMEMBERED_S
    assert not await is_refused(turnstile)
    turnstile.let_in("key_crowd")
    assert [await is_refused(turnstile) for _ in range(3)] == [False] * 3


async def test_nobody_waits_long_for_one_who_never_hears(
    turnstile: Turnstile, seconds: Seconds
) -> None:
    seconds.now += 1.01 * REMEMBERED_S
    assert not await is_refused(turnstile)
    seconds.now += 1.01 * ASKING_S
    assert not await is_refused(turnstile)


async def test_the_door_is_asked_again_from_here(
    turnstile: Turnstile, door: Door, seconds: Seconds
) -> None:
    assert await is_refused(turnstile)
    assert door.num_asked == 0, "it said so just now"
    seconds.now += 1.01 * REMEMBERED_S
    assert await is_refused(turnstile)
    assert door.num_asked == 1


async def test_while_the_door_is_about_to_close_everybody_asks_it(
    turnstile: Turnstile, door: Door, seconds: Seconds
) -> None:
    seconds.now += 1.01 * REMEMBERED_S
    door.says = None
    assert [await is_refused(turnstile) for _ in range(3)] == [False] * 3
    turnstile.let_in("key_crowd")
    door.says = OVERLOADED
    assert await is_refused(turnstile), "that others were let in is no promise"
    assert door.num_asked == 4


async def test_a_place_is_kept_for_who_was_let_in_until_it_enters(
    turnstile: Turnstile, door: Door, seconds: Seconds
) -> None:
    seconds.now += 1.01 * REMEMBERED_S
    door.says = None
    async with turnstile.passing(b"Bearer crowd"):
        assert not await is_refused(turnstile)
        assert door.ahead == Ahead(1, 1, 1)
        with turnstile.entering.enter("ten_crowd", 3) as entrance:
            assert entrance.ahead == Ahead(0, 0, 0), "its own place is not before it"
            assert not await is_refused(turnstile)
            assert door.ahead == Ahead(3, 3, 1)
    assert not await is_refused(turnstile)
    assert door.ahead == Ahead(0, 0, 0), "nothing is left of it"


async def test_a_place_is_kept_for_a_streamed_answer_until_its_work_enters(
    turnstile: Turnstile, door: Door, seconds: Seconds
) -> None:
    """Its work begins when the answer is sent, in a task of its own."""
    seconds.now += 1.01 * REMEMBERED_S
    door.says = None
    seen: list[Ahead] = []

    async def look() -> None:
        await is_refused(turnstile)
        seen.append(door.ahead)

    class Streamed(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.create_task(self.work())
            await super().__call__(scope, receive, send)

        async def work(self) -> None:
            await look()
            with turnstile.entering.enter("ten_crowd", 2) as entrance:
                await look()
                entrance.enqueued()
                await look()
            await look()

    api, router = FastAPI(), APIRouter(route_class=TurnstileRoute)
    answers = AnswerMetrics(CollectorRegistry(), top_tenants=5)
    api.state.ctx = SimpleNamespace(turnstile=turnstile, answers=answers)

    @router.post("/completions")
    async def answer() -> Response:
        return Streamed()

    api.include_router(router)
    transport = httpx.ASGITransport(api)
    async with httpx.AsyncClient(transport=transport, base_url="http://tenfold.test") as client:
        crowd = {"authorization": "Bearer crowd"}
        assert (await client.post("/completions", headers=crowd)).status_code == 200
    assert [ahead.num for ahead in seen] == [1, 2, 1, 0]


async def test_once_nobody_has_been_refused_for_a_while_the_door_is_left_alone(
    turnstile: Turnstile, door: Door, seconds: Seconds
) -> None:
    seconds.now += 1.01 * REMEMBERED_S
    door.says = None
    assert not await is_refused(turnstile)
    seconds.now += 1.01 * SETTLED_S
    assert not await is_refused(turnstile)
    assert door.num_asked == 1


async def test_a_key_that_will_soon_be_unknown_goes_the_whole_way(
    turnstile: Turnstile, door: Door, seconds: Seconds
) -> None:
    """It may have been disabled, and all of its requests would have to go to hear that."""
    seconds.now += KNOWN_S - 0.99 * RENEWED_S
    assert not await is_refused(turnstile)
    assert await is_refused(turnstile), "and the others wait for what it hears"
    assert door.num_asked == 0


async def test_where_the_door_cannot_be_asked_the_request_goes_and_hears_why(
    turnstile: Turnstile, seconds: Seconds
) -> None:
    async def fail(ahead: Ahead) -> ApiError | None:
        raise UnavailableError

    turnstile.remember("key_crowd", OVERLOADED, MAX_WAIT_S, fail)
    seconds.now += 1.01 * REMEMBERED_S
    assert not await is_refused(turnstile)


async def test_a_short_queue_is_looked_at_again_soon(
    turnstile: Turnstile, seconds: Seconds
) -> None:
    turnstile.remember("key_crowd", OVERLOADED, max_queue_wait_s=0.2)
    seconds.now += 0.03
    assert not await is_refused(turnstile)


async def test_a_key_that_asks_for_flex_is_not_told_what_others_are(turnstile: Turnstile) -> None:
    turnstile.note_flex("key_crowd")
    assert not await is_refused(turnstile)


async def test_a_key_that_was_not_verified_lately_is_unknown(
    turnstile: Turnstile, seconds: Seconds
) -> None:
    """It may have been disabled since."""
    seconds.now += 1.01 * KNOWN_S
    turnstile.remember("key_crowd", OVERLOADED, MAX_WAIT_S)
    assert not await is_refused(turnstile)
    assert turnstile.tenant_of(b"Bearer crowd") is None


async def test_a_refusal_of_long_ago_is_no_refusal(turnstile: Turnstile, seconds: Seconds) -> None:
    """One was let through, and all others were told what its key had been told at noon."""
    seconds.now += 3600
    turnstile.learn(b"Bearer crowd", "key_crowd", "ten_crowd")
    assert [await is_refused(turnstile) for _ in range(3)] == [False] * 3


async def test_a_refusal_is_repeated_before_the_body_is_read(
    context: AppContext, acme: Tenant, globex: Tenant, redis_url: str, seconds: Seconds
) -> None:
    app = create_app(replace(context, turnstile=Turnstile(seconds)))
    transport = httpx.ASGITransport(app)
    with redis.Redis.from_url(redis_url, protocol=2) as server:
        server.set(f"{keys.PREFIX}num_queued", context.settings.max_queued_requests)
    await until(lambda: context.queue.num_queued >= FEW)
    async with httpx.AsyncClient(transport=transport, base_url="http://tenfold.test") as client:
        refused = await client.post(PATH, json=body(), headers=acme.headers)
        again = await client.post(PATH, content=NOT_JSON, headers=acme.headers)
        other = await client.post(PATH, content=NOT_JSON, headers=globex.headers)
        seconds.now += 1.01 * REMEMBERED_S
        asked_again = await client.post(PATH, content=NOT_JSON, headers=acme.headers)
        seconds.now += 1.01 * REMEMBERED_S
        with redis.Redis.from_url(redis_url, protocol=2) as server:
            server.delete(f"{keys.PREFIX}num_queued")
        await until(lambda: context.queue.num_queued < FEW)
        later = await client.post(PATH, content=NOT_JSON, headers=acme.headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert (again.status_code, again.json()) == (503, refused.json())
    assert again.headers["retry-after"] == refused.headers["retry-after"]
    assert (asked_again.status_code, asked_again.json()) == (503, refused.json())
    assert other.status_code == later.status_code == 400
    counted = {"tenant": acme.id, "reason": "overloaded"}
    registry = context.metrics.registry
    assert registry.get_sample_value("tenfold_requests_rejected_total", counted) == 3
    assert registry.get_sample_value("tenfold_requests_received_total", {"tenant": acme.id}) == 3
    not_refused = {"tenant": globex.id}
    assert registry.get_sample_value("tenfold_requests_received_total", not_refused) is None
