"""Whoever is refused before there is an answer is counted among the refused, once."""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from prometheus_client import CollectorRegistry

import app.completions.endpoints
from app.completions.turnstile import (
    INFERENCE_SUFFIX,
    Turnstile,
    TurnstileRoute,
    count_turned_away,
)
from app.error_handlers import install_error_handlers
from app.errors import ApiError, BadRequestError, RateLimitedError, UnavailableError
from app.metrics.answers import AnswerMetrics

HEADERS = {"authorization": "Bearer crowd"}
AWAY = UnavailableError()


@dataclass
class Counted:
    """What the route asks of its process's context, and what it counted."""

    turnstile: Turnstile = field(default_factory=Turnstile)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.answers = AnswerMetrics(self.registry, top_tenants=5)

    def refusals(self) -> dict[tuple[str, str], float]:
        """By tenant and reason."""
        return {
            (sample.labels["tenant"], sample.labels["reason"]): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == "tenfold_requests_rejected_total"
        }


@pytest.fixture
def counted() -> Counted:
    return Counted()


async def post(counted: Counted, error: ApiError, **state: object) -> int:
    """The status of a request that fails with `error` when its route knows so much of it."""
    api, router = FastAPI(), APIRouter(route_class=TurnstileRoute)
    api.state.ctx = counted
    install_error_handlers(api)

    @router.post("/completions")
    async def fail(request: Request) -> None:
        for name, value in state.items():
            setattr(request.state, name, value)
        raise error

    api.include_router(router)
    transport = httpx.ASGITransport(api)
    async with httpx.AsyncClient(transport=transport, base_url="http://tenfold.test") as client:
        return (await client.post("/completions", headers=HEADERS)).status_code


async def test_a_refusal_before_the_answer_is_counted_for_whoever_is_known(
    counted: Counted,
) -> None:
    assert await post(counted, AWAY) == 503
    known = {"actor": "key_crowd", "actor_tenant_id": "ten_crowd"}
    assert await post(counted, AWAY, **known) == 503
    assert await post(counted, RateLimitedError(type="requests", retry_after_s=1), **known) == 429
    assert counted.refusals() == {
        ("other", "dependency_unavailable"): 1,
        ("ten_crowd", "dependency_unavailable"): 1,
        ("ten_crowd", "rate_limit_exceeded"): 1,
    }


async def test_what_the_answer_counts_and_what_is_no_refusal_is_not_counted_here(
    counted: Counted,
) -> None:
    """The control."""
    assert await post(counted, AWAY, is_watched=True) == 503
    assert await post(counted, BadRequestError("No.")) == 400
    assert counted.refusals() == {}


def test_what_the_front_door_turns_away_is_counted_if_it_asked_for_an_answer(
    counted: Counted,
) -> None:
    counted.turnstile.learn(b"Bearer crowd", "key_crowd", "ten_crowd")
    error = UnavailableError(code="overloaded")
    for path, key in (
        ("/v1/chat/completions", b"Bearer crowd"),
        ("/t/crowd/v1/completions", b"Bearer crowd"),
        ("/v1/completions", b"Bearer stranger"),
        ("/v1/adapters", b"Bearer crowd"),
    ):
        scope = {"type": "http", "path": path, "headers": [(b"authorization", key)]}
        count_turned_away(counted.turnstile, counted.answers, scope, error)
    assert counted.refusals() == {("ten_crowd", "overloaded"): 2, ("other", "overloaded"): 1}


def test_all_routes_of_inference_end_as_the_front_door_knows_them() -> None:
    paths = [getattr(route, "path", "") for route in app.completions.endpoints.router.routes]
    assert paths and all(path.endswith(INFERENCE_SUFFIX) for path in paths)
