"""Every answer of the API says which version it is of; a version that there is not is refused."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.api_version import KNOWN, NEWEST
from app.draining import Drain
from app.metrics.api import ApiMetrics
from app.middleware import RequestEdge

PATHS = ("/v1/x", "/t/acme/v1/x", "/admin/v1/x")


async def show(request: Request) -> JSONResponse:
    """What it was asked; as a key does that is pinned to a version, where the query says so."""
    if "pinned" in request.query_params:
        request.state.api_version = request.query_params["pinned"]
    return JSONResponse({"asked": getattr(request.state, "api_version", "none")})


@pytest.fixture
def client() -> httpx.AsyncClient:
    paths = (*PATHS, "/livez")
    inner = Starlette(routes=[Route(path, show) for path in paths])
    app = RequestEdge(inner, ApiMetrics(), Drain(delay_s=0, limit_s=0))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://tenfold.test")


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_says_which_version_it_is_of(client: httpx.AsyncClient, path: str) -> None:
    unasked = await client.get(path)
    assert (unasked.headers["api-version"], unasked.json()["asked"]) == (NEWEST, None)
    asked = await client.get(path, headers={"API-Version": NEWEST})
    assert (asked.headers["api-version"], asked.json()["asked"]) == (NEWEST, NEWEST)
    absent = await client.get("/v1/absent")
    assert (absent.status_code, absent.headers["api-version"]) == (404, NEWEST)


async def test_where_a_request_names_none_it_is_what_the_key_has(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/x?pinned=2020-01-01")
    assert answer.headers["api-version"] == "2020-01-01"


@pytest.mark.parametrize("version", ["2026-11-29", "latest", "", "\xff"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_version_that_there_is_not_is_refused_and_the_known_ones_are_named(
    client: httpx.AsyncClient, path: str, version: str
) -> None:
    sent = {"api-version": version.encode("latin-1")}
    response = await client.get(path, headers=sent)  # type: ignore[arg-type]  # bytes
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "api_version_unknown")
    assert error["param"] == "api-version" and all(
        each in error["message"] for each in KNOWN.values()
    )
    assert response.headers["api-version"] == NEWEST and response.headers["x-request-id"]


async def test_health_knows_no_version(client: httpx.AsyncClient) -> None:
    answer = await client.get("/livez", headers={"API-Version": "latest"})
    assert answer.status_code == 200 and "api-version" not in answer.headers
