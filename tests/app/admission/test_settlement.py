"""What is reserved becomes what the ledger says: once, in every way in which a request can end."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import redis
from sqlalchemy import text

from app.admission.messages import Ended, Settlement
from app.admission.service import Admission
from app.context import AppContext
from engine.transport import keys
from lora.base_spec import BaseSpec
from tests.app.admission.conftest import Books
from tests.builders.adapter_files import adapter_files
from tests.builders.admissions import admit_ask, make_ask, nothing_spent
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually, until

PATH = "/v1/completions"
PROMPT = [5, 6, 7]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "prompt": PROMPT, "max_tokens": 20, **fields}


async def post(api: httpx.AsyncClient, tenant: Tenant, **fields: Any) -> httpx.Response:
    return await api.post(PATH, json=body(**fields), headers=tenant.headers)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reservation_becomes_what_the_bill_says(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine, books: Books, stream: bool
) -> None:
    for _ in range(2):
        assert (await post(api, acme, stream=stream)).status_code == 200
    await books.take_in()
    assert await books.billed() == 2 * (len(PROMPT) + 6)
    for subject in (f"tenant:{acme.id}", f"key:{acme.key_id}"):
        assert await books.spent(subject) == await books.settled(subject) == await books.billed()
        assert await books.reserved(subject) == 0
    assert await books.redis.zcard(f"{keys.PREFIX}reservations") == 0


async def test_a_running_request_holds_all_that_it_may_use(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine, books: Books, context: AppContext
) -> None:
    engine.pause()
    running = asyncio.create_task(post(api, acme, n=2))
    await until(lambda: engine.num_running == 2)
    # The prompt is paid for once, however many choices it has.
    assert await books.enforced(f"tenant:{acme.id}") == len(PROMPT) + 2 * 20
    engine.resume()
    assert (await running).status_code == 200
    await books.take_in()
    assert await books.enforced(f"tenant:{acme.id}") == len(PROMPT) + 2 * 6 == await books.billed()


async def test_a_request_that_no_engine_saw_pays_nothing(
    api: httpx.AsyncClient, acme: Tenant, books: Books
) -> None:
    waiting = asyncio.create_task(post(api, acme))

    async def waits() -> bool:
        return bool(await books.redis.zcard(keys.queue(acme.id)))

    async def is_told() -> bool:
        return bool(await books.redis.xlen(keys.USAGE))

    await eventually(waits)
    assert await books.enforced(f"tenant:{acme.id}") == len(PROMPT) + 20
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await eventually(is_told)
    await books.take_in()
    assert await books.enforced(f"tenant:{acme.id}") == await books.billed() == 0
    assert await books.redis.zcard(f"{keys.PREFIX}reservations") == 0


async def test_settling_again_changes_nothing(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine, books: Books
) -> None:
    subject = f"tenant:{acme.id}"
    assert (await post(api, acme)).status_code == 200
    await books.take_in()
    before = await books.enforced(subject), await books.spent(subject)
    answer_id = engine.requests[0].request_id
    await books.settler.apply(Settlement(ended=[Ended(id=answer_id, tokens=500)]))
    assert (await books.enforced(subject), await books.spent(subject)) == before


async def test_a_redis_that_lost_its_data_enforces_what_the_ledger_says_at_once(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine, books: Books, operator: Operator
) -> None:
    subject = f"tenant:{acme.id}"
    assert (await post(api, acme)).status_code == 200
    await books.take_in()
    engine.pause()
    running = asyncio.create_task(post(api, acme))
    await until(lambda: engine.num_running == 1)
    before = await books.enforced(subject)
    assert before == len(PROMPT) + 6 + len(PROMPT) + 20

    name = f"{keys.PREFIX}spent:{subject}"
    await books.redis.delete(
        name, f"{keys.PREFIX}reserved:{subject}", f"{keys.PREFIX}reserved:key:{acme.key_id}"
    )
    for key in await books.redis.keys(f"{keys.PREFIX}reservation*"):
        await books.redis.delete(key)
    assert await books.enforced(subject) == 0

    limit = before + len(PROMPT) + 20
    await operator.done(
        "PUT", "/tenants/acme/limits", json={"limits": {"tokens_per_month": limit - 1}}
    )
    assert (await post(api, acme)).status_code == 429  # the control: without the ledger it passes
    assert await books.enforced(subject) == before
    await operator.done("PUT", "/tenants/acme/limits", json={"limits": {"tokens_per_month": limit}})
    more = asyncio.create_task(post(api, acme))
    await until(lambda: engine.num_running == 2)
    engine.resume()
    assert {(await each).status_code for each in (running, more)} == {200}
    await books.take_in()
    assert await books.enforced(subject) == await books.spent(subject) == await books.billed()


async def test_reservations_of_dead_processes_are_looked_after(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine, books: Books, redis_url: str
) -> None:
    engine.pause()
    running = asyncio.create_task(post(api, acme))
    await until(lambda: engine.num_running == 1)
    dead = Admission(redis_url, nothing_spent, lease_s=0.2)
    await admit_ask(dead, make_ask(dead, "f" * 32, tenant_id=acme.id, tokens=500))
    await dead.close()  # before the request was accepted
    with redis.Redis.from_url(redis_url) as server:
        for each in server.zrange(f"{keys.PREFIX}reservations", 0, -1):
            server.zadd(f"{keys.PREFIX}reservations", {each: 0})
    assert await books.settler.look_after() == 1
    # The control: the one that was accepted and runs is kept.
    assert await books.enforced(f"tenant:{acme.id}") == len(PROMPT) + 20
    assert await books.settler.look_after() == 0
    engine.resume()
    assert (await running).status_code == 200


async def test_money_is_settled_by_the_price_of_its_hour(
    api: httpx.AsyncClient, operator: Operator, engine: StubEngine, books: Books
) -> None:
    tenant = await operator.new_tenant("globex", limits={"cost_micros_per_month": 1000})
    response = await post(api, tenant)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "price_missing")
    price = {"currency": "usd", "input": "10", "output": "20"}
    await operator.done("POST", "/prices", json=price)
    assert (await post(api, tenant)).status_code == 200
    await books.take_in()
    async with books.owner.session() as session:
        query = "SELECT cost_nanos FROM spend WHERE subject = :subject"
        spent = await session.scalar(text(query), {"subject": f"tenant:{tenant.id}"})
    assert spent == (len(PROMPT) * 10 + 6 * 20) * 1000


async def test_an_adapters_limit_holds_for_it_alone_and_it_is_charged_besides(
    api: httpx.AsyncClient,
    acme: Tenant,
    engine: StubEngine,
    books: Books,
    operator: Operator,
    tiny_base: BaseSpec,
) -> None:
    adapter = await operator.new_adapter("acme", "bot")
    await operator.push("acme", "bot", adapter_files(tiny_base, seed=1))
    await operator.done("PUT", "/tenants/acme/adapters/bot/limits", json={"requests_per_minute": 1})
    first, second = await post(api, acme, model="bot"), await post(api, acme, model="bot")
    assert (first.status_code, second.status_code) == (200, 429)
    limit = second.json()["error"]["limit"]
    assert (limit["scope"], limit["id"]) == ("adapter", adapter["id"])
    assert (await post(api, acme)).status_code == 200  # the base
    await books.take_in()
    assert await books.spent(f"adapter:{adapter['id']}") == len(PROMPT) + 6
    assert await books.spent(f"tenant:{acme.id}") == 2 * (len(PROMPT) + 6)


async def test_the_choices_of_a_request_are_one_decision(
    api: httpx.AsyncClient, operator: Operator, engine: StubEngine, acme: Tenant
) -> None:
    decided = await _decision_of(await post(api, acme, n=2), operator)
    assert decided["reserved_tokens"] == len(PROMPT) + 2 * 20


async def test_why_a_request_was_admitted_or_refused_is_told_by_any_of_its_ids(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine, operator: Operator, books: Books
) -> None:
    await operator.done(
        "PUT",
        "/tenants/acme/limits",
        json={"limits": {"requests_per_minute": 1, "dry_run": {"tokens_per_day": 1}}},
    )
    passed, failed = await post(api, acme), await post(api, acme)
    assert (passed.status_code, failed.status_code) == (200, 429)
    assert passed.headers["x-ratelimit-remaining-requests"] == "0"

    first = await _decision_of(passed, operator)
    assert first["outcome"] == "admitted" and first["key_id"] == acme.key_id
    checks = {(each["kind"], each["mode"]): each for each in first["checks"]}
    assert checks["requests_per_minute", "hard"]["outcome"] == "passed"
    assert checks["tokens_per_day", "dry_run"]["outcome"] == "over"
    for reference in (passed.json()["id"], engine.requests[0].request_id):
        assert await operator.done("GET", f"/explain/{reference}") == first

    second = await _decision_of(failed, operator)
    assert (second["outcome"], second["tenant_id"]) == ("refused", acme.id)
    refused = next(each for each in second["checks"] if each["outcome"] == "refused")
    assert (refused["kind"], refused["limit"], refused["used"]) == ("requests_per_minute", 1, 1)
    assert refused["free_at"] is not None
    for absent in ("req_01kb7c2v3n8q4r5s6t7v8w9x0y", "nothing", "chatcmpl-x"):
        assert (await operator.call("GET", f"/explain/{absent}")).status_code == 404

    # Whoever asks again for what was admitted to a worker that died has no checks to keep.
    async with books.owner.session() as session:
        await session.execute(text("UPDATE requests SET decision = decision - 'checks'"))
        await session.commit()
    assert await _decision_of(passed, operator) == first | {"checks": []}


async def _decision_of(response: httpx.Response, operator: Operator) -> dict[str, Any]:
    return await operator.done("GET", f"/explain/{response.headers['x-request-id']}")
