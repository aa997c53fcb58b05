"""A revoked key is refused everywhere at once, and for at most as long as a snapshot lives."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import httpx
import pytest

from app.api import create_app
from app.context import AppContext, open_context
from app.revocations import Revocations
from app.settings import Settings
from tests.builders.operator import Operator
from tests.builders.relay import Relay
from tests.builders.waiting import until

PROMPTLY_S = 1.0


@pytest.fixture
async def other_api(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """The tenants' port of another API process on the same registry and queue."""
    other = settings.model_copy(update={"api_id": "api-other"})
    async with open_context(other) as context:
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://other") as client:
            yield client


REVOCATIONS = {
    "disable": ("POST", "/tenants/{slug}/keys/{key_id}/disable", 401),
    "delete": ("DELETE", "/tenants/{slug}/keys/{key_id}", 401),
    "suspend": ("POST", "/tenants/{slug}/suspend", 403),
    "delete-tenant": ("DELETE", "/tenants/{slug}", 401),
}


async def test_revocation_reaches_two_api_processes_within_a_second(
    operator: Operator, api: httpx.AsyncClient, other_api: httpx.AsyncClient
) -> None:
    for slug, (method, path, status) in REVOCATIONS.items():
        tenant = await operator.new_tenant(slug)
        for client in (api, other_api):
            assert (await client.get("/v1/models", headers=tenant.headers)).status_code == 200

        await operator.done(method, path.format(slug=slug, key_id=tenant.key_id))

        revoked_at = time.perf_counter()
        for client in (api, other_api):
            response = await client.get("/v1/models", headers=tenant.headers)
            assert response.status_code == status
        assert time.perf_counter() - revoked_at < PROMPTLY_S


async def test_every_process_hears_of_a_revocation(
    context: AppContext, settings: Settings, operator: Operator
) -> None:
    heard: list[float] = []
    other = Revocations(settings.redis_url, lambda: heard.append(time.perf_counter()))
    await other.start()
    heard.clear()
    acme = await operator.new_tenant("acme")
    assert not heard  # nothing was revoked

    await operator.done("POST", f"/tenants/acme/keys/{acme.key_id}/disable")

    await until(lambda: bool(heard), timeout_s=PROMPTLY_S)
    await other.close()


async def test_who_may_have_missed_a_revocation_forgets_as_if_it_had_heard(
    settings: Settings, redis_url: str
) -> None:
    port = httpx.URL(redis_url).port
    assert port is not None
    heard: list[float] = []
    async with Relay(lambda: port) as relay:
        url = httpx.URL(redis_url).copy_with(port=relay.port)
        listening = Revocations(str(url), lambda: heard.append(time.perf_counter()))
        await listening.start()
        assert listening.is_listening
        heard.clear()
        relay.cut()
        await until(lambda: not listening.is_listening, timeout_s=5.0)
        relay.restore()
        await until(lambda: listening.is_listening, timeout_s=5.0)
        assert heard
        await listening.close()


async def test_a_revocation_succeeds_without_redis(context: AppContext) -> None:
    revoked: list[bool] = []
    lost = Revocations("redis://127.0.0.1:1/0", lambda: revoked.append(True))
    await lost.start()
    await lost.announce()
    assert revoked and not lost.is_listening
    await lost.close()
