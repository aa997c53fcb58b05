"""A registry that is slow to say what one tenant has spent is nobody else's trouble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import httpx
import pytest

from app.admission.messages import TenantSpend
from app.admission.service import Admission, SpendUnknownError
from app.api import create_app
from app.context import AppContext
from app.errors import UnavailableError
from app.promptly import promptly
from tests.builders.admissions import admit_ask, make_ask, nothing_spent, tenant_limits
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually

PATH = "/v1/completions"
LIMITS = {"tokens_per_month": 10_000}
BODY = {"model": MODEL_ID, "prompt": "abc", "max_tokens": 4}


class SlowSpend:
    """Reads what a tenant has spent; of `slow_tenant_id` not before it `may_answer`."""

    def __init__(self) -> None:
        self.slow_tenant_id = "ten_a"
        self.may_answer = asyncio.Event()
        self.num_reads = 0

    async def __call__(self, tenant_id: str) -> TenantSpend:
        self.num_reads += 1
        if tenant_id == self.slow_tenant_id:
            await self.may_answer.wait()
        return await nothing_spent(tenant_id)


@pytest.fixture
async def spend() -> SlowSpend:
    return SlowSpend()


@pytest.fixture
async def admission(redis_url: str, spend: SlowSpend) -> AsyncIterator[Admission]:
    service = Admission(redis_url, spend)
    yield service
    await service.close()


@pytest.fixture
def engine(redis_url: str) -> Iterator[StubEngine]:
    with StubEngine(redis_url) as stub:
        yield stub


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme", limits=LIMITS)


@pytest.fixture
async def globex(operator: Operator) -> Tenant:
    return await operator.new_tenant("globex", limits=LIMITS)


async def test_while_one_tenants_spend_is_slow_to_read_it_is_refused_and_others_are_served(
    context: AppContext,
    admission: Admission,
    spend: SlowSpend,
    acme: Tenant,
    globex: Tenant,
    engine: StubEngine,
) -> None:
    spend.slow_tenant_id = acme.id
    settings = context.settings.model_copy(update={"dependency_timeout_s": 0.2})
    slow = replace(context, admission=admission, settings=settings)
    transport = httpx.ASGITransport(create_app(slow))
    async with httpx.AsyncClient(transport=transport, base_url="http://tenfold.test") as api:
        for _ in range(3):
            refused = await api.post(PATH, json=BODY, headers=acme.headers)
            code = refused.json()["error"]["code"]
            assert (refused.status_code, code) == (503, "dependency_unavailable")
            assert not context.redis.is_away and not context.registry.availability.is_away
            served = await api.post(PATH, json=BODY, headers=globex.headers)
            assert served.status_code == 200, served.text
        spend.may_answer.set()

        async def is_served() -> bool:
            return (await api.post(PATH, json=BODY, headers=acme.headers)).status_code == 200

        await eventually(is_served)
    assert spend.num_reads == 2, "of each tenant, whoever waited for it"


async def test_those_who_ask_at_once_share_one_reading(
    admission: Admission, spend: SlowSpend
) -> None:
    asks = [make_ask(admission, f"r{number}", tenant_limits(**LIMITS)) for number in range(20)]
    asking = [asyncio.create_task(admit_ask(admission, ask)) for ask in asks]
    await asyncio.sleep(0.1)
    spend.may_answer.set()
    await asyncio.gather(*asking)
    assert spend.num_reads == 1


async def test_what_nobody_waits_for_any_more_is_read_to_its_end(
    admission: Admission, spend: SlowSpend
) -> None:
    ask = make_ask(admission, "r1", tenant_limits(**LIMITS))
    with pytest.raises(SpendUnknownError):
        await admission.admit(ask)
    for _ in range(3):
        with pytest.raises(UnavailableError):
            await promptly(admission.load(ask.tenant_id), 0.02)
    spend.may_answer.set()
    await promptly(admission.load(ask.tenant_id), 10.0)
    await admission.admit(ask)
    assert spend.num_reads == 1
