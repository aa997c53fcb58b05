"""A request with an Idempotency-Key is done once, and answered as it was, to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from app.db import Database
from app.idempotency.jobs import AnswerJobs
from app.idempotency.once import KEPT
from tests.builders.clock import Clock
from tests.builders.operator import OPERATOR, Operator, Tenant
from tests.fixtures.servers import TestDatabase

ADMIN = "/admin/v1"
IN_A_THOUSAND_YEARS = 3600 * 24 * 365 * 1000
PRICE = {"currency": "eur", "input": "1", "output": "2", "effective_at": IN_A_THOUSAND_YEARS}
CREATIONS: list[tuple[str, dict[str, Any]]] = [
    ("/tenants", {"slug": "globex"}),
    ("/plans", {"name": "gold"}),
    ("/prices", PRICE),
    ("/tenants/acme/keys", {"name": "second"}),
    ("/tenants/acme/adapters", {"name": "bot"}),
]
NEEDS_NO_KEY = {
    # The same bytes are the same version, whoever sends them again.
    "/admin/v1/tenants/{tenant}/adapters/{adapter}/versions",
    "/admin/v1/tenants/{tenant}/adapters/{adapter}/uploads/{upload}/complete",
    # It keeps nothing.
    "/admin/v1/tenants/{tenant}/adapters/{adapter}/validate",
}


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme", scopes=["inference", "keys:write", "adapters:write"])


async def send(
    client: httpx.AsyncClient,
    path: str,
    body: Mapping[str, Any],
    key: str = "k1",
    headers: Mapping[str, str] = OPERATOR,
) -> httpx.Response:
    return await client.post(path, json=body, headers={**headers, "idempotency-key": key})


@pytest.mark.parametrize(("path", "body"), CREATIONS)
async def test_what_is_sent_twice_is_made_once_and_answered_with_the_same_bytes(
    admin: httpx.AsyncClient, acme: Tenant, path: str, body: dict[str, Any]
) -> None:
    first = await send(admin, ADMIN + path, body)
    again = await send(admin, ADMIN + path, body)
    assert first.status_code == again.status_code == 201, first.text
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    listed = await admin.get(ADMIN + path, headers=OPERATOR)
    assert sum(each["id"] == first.json()["id"] for each in listed.json()["data"]) == 1
    assert len(listed.json()["data"]) == len({each["id"] for each in listed.json()["data"]})


async def test_control_without_a_key_a_second_request_is_a_second_one(
    admin: httpx.AsyncClient, acme: Tenant
) -> None:
    path = f"{ADMIN}/tenants/acme/keys"
    made = [await admin.post(path, json={}, headers=OPERATOR) for _ in range(2)]
    assert made[0].json()["id"] != made[1].json()["id"]
    other = [await send(admin, path, {}, key) for key in ("k1", "k2")]
    assert other[0].json()["id"] != other[1].json()["id"]


async def test_a_rotation_that_is_repeated_gives_the_one_new_key_again(
    admin: httpx.AsyncClient, acme: Tenant
) -> None:
    path = f"{ADMIN}/tenants/acme/keys/{acme.key_id}/rotate"
    first, again = [await send(admin, path, {"overlap_s": 60}) for _ in range(2)]
    assert first.status_code == 201 and again.json() == first.json()
    assert first.json()["secret"].startswith("tf_")


async def test_the_same_key_with_another_request_is_refused(
    admin: httpx.AsyncClient, acme: Tenant
) -> None:
    await send(admin, f"{ADMIN}/tenants", {"slug": "globex"})
    for path, body in (
        ("/tenants", {"slug": "initech"}),
        ("/tenants?x=1", {"slug": "globex"}),
        ("/tenants/acme/keys", {}),
    ):
        refused = await send(admin, ADMIN + path, body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            409,
            "idempotency_mismatch",
        )


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_a_key_has_1_to_255_characters(admin: httpx.AsyncClient, key: str) -> None:
    refused = await send(admin, f"{ADMIN}/tenants", {"slug": "globex"}, key)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "idempotency-key")
    assert (await send(admin, f"{ADMIN}/tenants", {"slug": "globex"}, "k" * 255)).is_success


async def test_of_twins_in_flight_one_is_done(admin: httpx.AsyncClient, acme: Tenant) -> None:
    path = f"{ADMIN}/tenants/acme/keys"
    answers = await asyncio.gather(*(send(admin, path, {"name": "twin"}) for _ in range(8)))
    made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    refused = [answer for answer in answers if answer.status_code != 201]
    assert len(made) == 1
    assert all(each.json()["error"]["code"] == "idempotency_in_progress" for each in refused)
    assert all(each.headers["retry-after"] == "1" for each in refused)
    assert (await send(admin, path, {"name": "twin"})).json()["id"] in made


async def test_who_comes_while_the_first_has_not_ended_is_told_so(
    admin: httpx.AsyncClient, acme: Tenant, database: TestDatabase
) -> None:
    path, body = f"{ADMIN}/tenants/acme/keys", {"name": "slow"}
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:  # whoever is first waits for its tenant's chain
        await session.execute(text("SELECT 1 FROM audit_heads FOR UPDATE"))
        twins = [asyncio.create_task(send(admin, path, body)) for _ in range(2)]
        (told,), (waiting,) = await asyncio.wait(twins, return_when=asyncio.FIRST_COMPLETED)
        assert told.result().json()["error"]["code"] == "idempotency_in_progress"
        await session.rollback()
    assert (await waiting).status_code == 201
    await owner.close()


async def test_an_error_is_not_kept(admin: httpx.AsyncClient, acme: Tenant) -> None:
    path = f"{ADMIN}/tenants"
    refused = await send(admin, path, {"slug": "acme"})
    assert refused.json()["error"]["code"] == "name_conflict"
    (await admin.delete(f"{ADMIN}/tenants/acme", headers=OPERATOR)).raise_for_status()
    assert (await send(admin, path, {"slug": "acme"})).status_code == 201


async def test_an_answer_is_for_whoever_got_it(
    admin: httpx.AsyncClient, api: httpx.AsyncClient, operator: Operator, acme: Tenant
) -> None:
    body = {"scopes": ["inference"]}
    mine = await send(api, "/v1/keys", body, headers=acme.headers)
    assert (await send(api, "/v1/keys", body, headers=acme.headers)).json() == mine.json()
    colleague = await operator.new_key("acme", scopes=["inference", "keys:write"])
    other = await operator.new_tenant("globex", scopes=["inference", "keys:write"])
    for headers in ({"x-api-key": colleague["secret"]}, other.headers):
        theirs = await send(api, "/v1/keys", body, headers=headers)
        assert theirs.status_code == 201 and theirs.json()["secret"] != mine.json()["secret"]


async def test_a_revoked_key_is_answered_nothing_again(
    api: httpx.AsyncClient, operator: Operator, acme: Tenant
) -> None:
    body = {"scopes": ["inference"]}
    assert (await send(api, "/v1/keys", body, headers=acme.headers)).status_code == 201
    await operator.done("POST", f"/tenants/acme/keys/{acme.key_id}/disable")
    assert (await send(api, "/v1/keys", body, headers=acme.headers)).status_code == 401


async def test_after_a_day_the_key_may_be_used_anew_and_a_worker_removes_the_answer(
    admin: httpx.AsyncClient, acme: Tenant, clock: Clock, database: TestDatabase
) -> None:
    path = f"{ADMIN}/tenants/acme/keys"
    first = await send(admin, path, {})
    clock.advance(KEPT.total_seconds() - 1)
    assert (await send(admin, path, {})).json() == first.json()
    clock.advance(2)
    assert (await send(admin, path, {})).json()["id"] != first.json()["id"]

    owner, worker = Database(database.owner_url), Database(database.worker_url)
    async with owner.session() as session:
        assert await AnswerJobs(worker).remove_expired() == 0
        count = text("SELECT count(*) FROM idempotent_answers")
        assert await session.scalar(count) == 1
        await session.execute(text("UPDATE idempotent_answers SET expires_at = now()"))
        await session.commit()
        assert await AnswerJobs(worker).remove_expired() == 1
        assert await session.scalar(count) == 0
    await owner.close()
    await worker.close()


async def test_a_dump_of_the_answers_opens_nothing(
    admin: httpx.AsyncClient, acme: Tenant, database: TestDatabase
) -> None:
    secret = (await send(admin, f"{ADMIN}/tenants/acme/keys", {}, "a-guess")).json()["secret"]
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:
        rows = (await session.execute(text("SELECT * FROM idempotent_answers"))).all()
    await owner.close()
    (row,) = rows
    dump = b"|".join(each if isinstance(each, bytes) else str(each).encode() for each in row)
    assert secret.encode() not in dump and b"a-guess" not in dump and b"api_key" not in dump


def test_every_route_that_creates_takes_an_idempotency_key(
    admin_app: FastAPI, tenant_app: FastAPI
) -> None:
    without = set()
    for app in (admin_app, tenant_app):
        for path, operations in app.openapi()["paths"].items():
            created = {"201", "202"} & set(operations.get("post", {}).get("responses", {}))
            names = {
                each["name"].lower() for each in operations.get("post", {}).get("parameters", [])
            }
            if created and "idempotency-key" not in names:
                without.add(path.replace("/t/{tenant}/v1", "/v1"))
    admins = {path.replace("/admin/v1/tenants/{tenant}", "/v1") for path in NEEDS_NO_KEY}
    assert without <= NEEDS_NO_KEY | admins
