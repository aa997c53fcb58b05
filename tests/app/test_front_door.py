"""A process that cannot keep up says so at once, and not to those who ask for little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.types import Scope

from app.draining import Drain
from app.errors import UnavailableError
from app.front_door import FrontDoor, LoopLag, shown_key
from app.metrics.api import ApiMetrics
from app.middleware import RequestEdge
from app.route_finder import RouteFinder
from tests.builders.waiting import until

MAX_LAG_S = 20.0
LATE_S = 1e6
"""For as long as a test takes."""
CROWD = {"authorization": "Bearer crowd"}
QUIET = {"x-api-key": "quiet"}


class House:
    """An application whose requests wait until they are let go."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.lag = LoopLag()
        self.may_leave = asyncio.Event()
        self.num_inside = 0
        self.turned_away: list[tuple[bytes, str]] = []
        self.app.post("/wait")(self._wait)
        self.app.get("/look")(self._look)
        self.app.add_middleware(FrontDoor, max_lag_s=MAX_LAG_S, lag=self.lag, on_refused=self._note)

    async def _wait(self) -> None:
        self.num_inside += 1
        await self.may_leave.wait()

    async def _look(self) -> None:
        return

    def _note(self, scope: Scope, error: UnavailableError) -> None:
        self.turned_away.append((shown_key(scope), error.code))


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    async with asyncio.timeout(60):
        yield house


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(house.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://house.test") as client:
        yield client


async def test_who_has_a_crowd_inside_is_turned_away_and_who_has_not_is_let_in(
    house: House, client: httpx.AsyncClient
) -> None:
    inside = [asyncio.create_task(client.post("/wait", headers=CROWD)) for _ in range(3)]
    await until(lambda: house.num_inside == 3)
    house.lag.seconds = LATE_S
    refused = await client.post("/wait", headers=CROWD)
    seen = await client.get("/look", headers=CROWD)
    inside.append(asyncio.create_task(client.post("/wait", headers=QUIET)))
    await until(lambda: house.num_inside == 4)
    house.may_leave.set()
    assert [response.status_code for response in await asyncio.gather(*inside)] == [200] * 4
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert refused.headers["retry-after"] == "2"
    assert house.turned_away == [(b"Bearer crowd", "overloaded")]
    assert seen.status_code == 200


async def test_in_time_everybody_is_let_in(house: House, client: httpx.AsyncClient) -> None:
    """The control."""
    inside = [asyncio.create_task(client.post("/wait", headers=CROWD)) for _ in range(20)]
    await until(lambda: house.num_inside > 0)
    house.lag.seconds = MAX_LAG_S
    inside.append(asyncio.create_task(client.post("/wait", headers=CROWD)))
    house.may_leave.set()
    assert {response.status_code for response in await asyncio.gather(*inside)} == {200}
    assert house.turned_away == []


async def test_an_empty_house_is_never_too_full(house: House, client: httpx.AsyncClient) -> None:
    house.may_leave.set()
    house.lag.seconds = LATE_S
    assert (await client.post("/wait", headers=CROWD)).status_code == 200


async def test_the_lag_is_how_late_the_loop_was_and_is_forgotten() -> None:
    lag, is_needed = LoopLag(), True
    lag.measure(lambda: is_needed)
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251 (that is the point)
    await until(lambda: lag.seconds > 0.4)
    await until(lambda: lag.seconds < 0.2, timeout_s=30)
    is_needed = False
    await until(lambda: lag.seconds == 0)


async def test_what_is_refused_is_counted_under_the_route_that_it_was_for() -> None:
    app, router, metrics = FastAPI(), APIRouter(), ApiMetrics()
    lag, routes = LoopLag(), RouteFinder(app)
    inside, may_leave = asyncio.Event(), asyncio.Event()

    @router.post("/rooms/{room}/wait")
    async def wait(room: str) -> None:
        inside.set()
        await may_leave.wait()

    def find_route(scope: Scope, error: UnavailableError) -> None:
        scope["route"] = routes.find(scope)

    app.include_router(router, prefix="/v1")
    app.include_router(router, prefix="/t/{tenant}/v1")
    app.add_middleware(FrontDoor, max_lag_s=MAX_LAG_S, lag=lag, on_refused=find_route)
    app.add_middleware(RequestEdge, metrics=metrics, drain=Drain(delay_s=0, limit_s=0))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://house.test") as client:
        served = asyncio.create_task(client.post("/v1/rooms/a/wait"))
        await inside.wait()
        lag.seconds = LATE_S
        for path in ("/v1/rooms/b/wait", "/t/acme/v1/rooms/c/wait", "/v1/holes.php"):
            assert (await client.post(path)).status_code == 503
        may_leave.set()
        assert (await served).status_code == 200
    counted = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "tenfold_http_requests_total"
    }
    template = "/rooms/{room}/wait"
    assert counted == {(template, "200"): 1, (template, "503"): 2, ("unmatched", "503"): 1}


def test_a_route_is_found_for_the_method_that_it_has() -> None:
    app = FastAPI()
    app.get("/look")(lambda: None)
    routes = RouteFinder(app)
    found = {method: routes.find({"method": method, "path": "/look"}) for method in ("GET", "POST")}
    assert getattr(found["GET"], "path", None) == "/look" and found["POST"] is None
