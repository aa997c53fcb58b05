"""Who was refused just now is refused again for next to nothing; nobody else is, nor for long."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
import redis

from app.api import create_app
from app.completions.door import FEW
from app.completions.turnstile import ASKING_S, KNOWN_S, REMEMBERED_S, Turnstile
from app.context import AppContext
from app.errors import UnavailableError
from engine.transport import keys
from tests.app.completions.test_chat_route import PATH, body
from tests.builders.operator import Tenant
from tests.builders.waiting import until

MAX_WAIT_S = 10.0
NOT_JSON = b"{"


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def turnstile(seconds: Seconds) -> Turnstile:
    """It knows two keys, and one of them was refused."""
    turnstile = Turnstile(seconds)
    turnstile.learn(b"Bearer crowd", "key_crowd", "ten_crowd")
    turnstile.learn(b"Bearer quiet", "key_quiet", "ten_quiet")
    turnstile.remember("key_crowd", UnavailableError(code="overloaded"), MAX_WAIT_S)
    return turnstile


def test_a_refusal_counts_for_its_key_and_for_a_moment(
    turnstile: Turnstile, seconds: Seconds
) -> None:
    refusal = turnstile.recall(b"Bearer crowd")
    assert refusal is not None and refusal.code == "overloaded"
    assert turnstile.recall(b"Bearer quiet") is None
    assert turnstile.recall(b"Bearer nobody") is None
    seconds.now += 1.01 * REMEMBERED_S
    assert turnstile.recall(b"Bearer crowd") is None


def test_after_that_one_asks_for_all(turnstile: Turnstile, seconds: Seconds) -> None:
    seconds.now += 1.01 * REMEMBERED_S
    assert turnstile.recall(b"Bearer crowd") is None
    assert turnstile.recall(b"Bearer crowd") is not None
    turnstile.remember("key_crowd", UnavailableError(code="overloaded"), MAX_WAIT_S)
    seconds.now += 0.99 * REMEMBERED_S
    assert turnstile.recall(b"Bearer crowd") is not None, "what it heard counts as long again"


def test_who_is_let_in_lets_in_the_others(turnstile: Turnstile, seconds: Seconds) -> None:
    seconds.now += 1.01 * REMEMBERED_S
    turnstile.recall(b"Bearer crowd")
    turnstile.let_in("key_crowd")
    assert [turnstile.recall(b"Bearer crowd") for _ in range(3)] == [None] * 3


def test_nobody_waits_long_for_one_who_never_hears(turnstile: Turnstile, seconds: Seconds) -> None:
    seconds.now += 1.01 * REMEMBERED_S
    turnstile.recall(b"Bearer crowd")
    seconds.now += 1.01 * ASKING_S
    assert turnstile.recall(b"Bearer crowd") is None


def test_a_short_queue_is_looked_at_again_soon(turnstile: Turnstile, seconds: Seconds) -> None:
    turnstile.remember("key_crowd", UnavailableError(), max_queue_wait_s=0.2)
    seconds.now += 0.03
    assert turnstile.recall(b"Bearer crowd") is None


def test_a_key_that_asks_for_flex_is_not_told_what_others_are(turnstile: Turnstile) -> None:
    turnstile.note_flex("key_crowd")
    assert turnstile.recall(b"Bearer crowd") is None


def test_a_key_that_was_not_verified_lately_is_unknown(
    turnstile: Turnstile, seconds: Seconds
) -> None:
    """It may have been disabled since."""
    seconds.now += 1.01 * KNOWN_S
    turnstile.remember("key_crowd", UnavailableError(), MAX_WAIT_S)
    assert turnstile.recall(b"Bearer crowd") is None
    assert turnstile.tenant_of(b"Bearer crowd") is None


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
        later = await client.post(PATH, content=NOT_JSON, headers=acme.headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert (again.status_code, again.json()) == (503, refused.json())
    assert again.headers["retry-after"] == refused.headers["retry-after"]
    assert other.status_code == later.status_code == 400
    counted = {"tenant": acme.id, "reason": "overloaded"}
    registry = context.metrics.registry
    assert registry.get_sample_value("tenfold_requests_rejected_total", counted) == 2
    assert registry.get_sample_value("tenfold_requests_received_total", {"tenant": acme.id}) == 2
    not_refused = {"tenant": globex.id}
    assert registry.get_sample_value("tenfold_requests_received_total", not_refused) is None
