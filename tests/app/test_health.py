"""What Kubernetes and Prometheus are told."""

from __future__ import annotations

import time

import httpx

from app.api import create_app
from app.context import open_context
from app.settings import Settings
from tests.builders.operator import OPERATOR, Operator
from tests.builders.stub_engine import StubEngine


async def test_ready_while_registry_queue_and_an_engine_answer(
    api: httpx.AsyncClient, admin: httpx.AsyncClient, redis_url: str
) -> None:
    before = await api.get("/readyz")
    assert before.status_code == 503
    assert before.json()["checks"] == {"registry": "ok", "queue": "ok", "engines": 0}

    with StubEngine(redis_url):
        for client in (api, admin):
            during = await client.get("/readyz")
            assert (during.status_code, during.json()["checks"]["engines"]) == (200, 1)

    assert (await api.get("/readyz")).status_code == 503


async def test_not_ready_but_alive_and_quick_while_servers_are_down(settings: Settings) -> None:
    down = settings.model_copy(
        update={
            "database_url": "postgresql+asyncpg://tenfold_app:x@127.0.0.1:1/none",
            "redis_url": "redis://127.0.0.1:1/0",
        }
    )
    async with open_context(down) as context:
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            started_at = time.monotonic()
            ready, alive = await client.get("/readyz"), await client.get("/livez")

    assert time.monotonic() - started_at < 10
    assert (ready.status_code, alive.status_code) == (503, 200)
    assert ready.json()["checks"] == {
        "registry": "unreachable",
        "queue": "unreachable",
        "engines": 0,
    }


async def test_metrics_carry_no_tenant_model_or_path(
    operator: Operator, api: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    acme = await operator.new_tenant("acme")
    await api.get("/v1/models/secret-bot", headers=acme.headers)
    await api.get("/t/acme/v1/models", headers=acme.headers)
    await api.get("/scan/for/holes.php")

    metrics = (await admin.get("/metrics")).text

    assert 'route="/models/{model:path}"' in metrics and 'route="unmatched"' in metrics
    for text in ("acme", "secret-bot", "holes", acme.id, acme.secret):
        assert text not in metrics


async def test_engines_may_be_optional_so_that_what_waits_can_start_one(
    api: httpx.AsyncClient,
) -> None:
    assert (await api.get("/readyz?engines=optional")).status_code == 200
    assert (await api.get("/readyz")).status_code == 503


async def test_autoscaler_is_answered_without_an_engine(admin: httpx.AsyncClient) -> None:
    status = (await admin.get("/internal/scaling", headers=OPERATOR)).json()
    assert (status["queued_requests"], status["engines"], status["wanted"]) == (0, 0, 0)
    assert "tenfold_queued_tokens 0.0" in (await admin.get("/metrics")).text
