"""A tenant with an adapter of several versions, and a stub engine with a real loop.

Knows nothing of what is tried. The engine's model is a hash of prefix and adapter, so that an
answer tells which digest made it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from app.audit.trail import worker_trail
from app.context import AppContext
from app.db import Database
from app.rollouts.jobs import RolloutJobs
from app.rollouts.samples import SampleBook
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_loop import StubLoop
from tests.fixtures.servers import TestDatabase

BOT = "/tenants/acme/adapters/bot"
Version = dict[str, Any]
Push = Callable[[int], Awaitable[Version]]
Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def push(operator: Operator, acme: Tenant, tiny_base: BaseSpec) -> Push:
    """Upload a version whose bytes are the seed's, and let the worker verify it."""

    async def push(seed: int) -> Version:
        return await operator.push("acme", "bot", adapter_files(tiny_base, rank=1, seed=seed))

    return push


@pytest.fixture
async def versions(push: Push) -> list[Version]:
    """v1, v2 and v3, all active; `prod` is v1."""
    return [await push(seed) for seed in (1, 2, 3)]


@pytest.fixture
def engine(redis_url: str, tiny_base: BaseSpec) -> Iterator[StubLoop]:
    with StubLoop(redis_url, tiny_base, step_s=0.002) as running:
        yield running


@pytest.fixture
def ask(api: httpx.AsyncClient, acme: Tenant) -> Ask:
    """A completion of a few tokens; `fields` go with it."""

    async def ask(model: str = "bot", **fields: Any) -> httpx.Response:
        body = {"model": model, "prompt": "Hello", "max_tokens": 4, "temperature": 0, **fields}
        return await api.post("/v1/completions", json=body, headers=acme.headers)

    return ask


@pytest.fixture
async def owner(database: TestDatabase) -> AsyncIterator[Database]:
    """The superuser, as an older process or the clock would act."""
    opened = Database(database.owner_url, pool_size=1)
    yield opened
    await opened.close()


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.fixture
async def worker(context: AppContext) -> AsyncIterator[RolloutJobs]:
    """Of rollouts: it works when the test says so."""
    pepper = context.settings.key_pepper.get_secret_value()
    jobs = RolloutJobs(
        context.database,
        SampleBook(context.settings.redis_url),
        context.now,
        lambda rollout_id: worker_trail(pepper, rollout_id, context.now()),
    )
    yield jobs
    await jobs.close()
