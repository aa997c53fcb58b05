"""An alias means one version or several by weight, and goes back to where it pointed."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise, product
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from app.adapters.weighted import Draw, pick
from app.db import Database
from tests.builders.operator import OPERATOR, Operator, Tenant
from tests.builders.stub_loop import StubLoop
from tests.corpus.lifecycle.conftest import BOT, Ask, Push, Version, code

PROD = f"{BOT}/aliases/prod"
NUM_KEYS = 20_000


READY = {"params": {"wait": 10}}  # engines are to have what it means before it moves


def weighted(*pairs: tuple[str, int], **fields: Any) -> dict[str, Any]:
    targets = [{"version": version, "weight": weight} for version, weight in pairs]
    return {"json": {"targets": targets, **fields}}


def drawn(weights: list[int]) -> list[int]:
    return [pick(weights, f"key-{number}") for number in range(NUM_KEYS)]


def test_keys_are_spread_by_weight() -> None:
    for weights in ([95, 5], [1, 99], [20, 30, 50]):
        counts = Counter(drawn(weights))
        for place, weight in enumerate(weights):
            share = 100 * counts[place] / NUM_KEYS
            assert abs(share - weight) < 1.5, (weights, place)


def test_a_canarys_keys_stay_its_keys_while_it_grows() -> None:
    ladders = [drawn([100 - share, share]) for share in (5, 25, 50, 99)]
    for before, after in pairwise(ladders):
        assert all(later == 1 for earlier, later in zip(before, after, strict=True) if earlier)


def test_control_keys_that_are_drawn_anew_do_not_stay() -> None:
    before = [pick([75, 25], f"a-{number}") for number in range(NUM_KEYS)]
    after = [pick([50, 50], f"b-{number}") for number in range(NUM_KEYS)]
    assert any(not later for earlier, later in zip(before, after, strict=True) if earlier)


def test_a_draw_is_by_the_field_that_the_alias_names_and_else_by_the_request() -> None:
    draw = Draw("req-1", {"user": "u1", "safety_identifier": None})
    assert draw.key("x", "user") == Draw("req-2", {"user": "u1"}).key("x", "user")
    assert draw.key("x", "user") != draw.key("y", "user")
    assert draw.key("x", "safety_identifier") == draw.key("x", None)
    assert draw.key("x", None) != Draw("req-2").key("x", None)
    assert "u1" not in repr(draw)


async def served(ask: Ask, num: int, **fields: Any) -> Counter[str]:
    """By which version so many requests were answered."""
    responses = [await ask(**fields) for _ in range(num)]
    assert {response.status_code for response in responses} == {200}
    return Counter(response.headers["x-adapter-version"] for response in responses)


async def test_requests_follow_the_weights_and_say_which_version_answered(
    operator: Operator, versions: list[Version], engine: StubLoop, ask: Ask
) -> None:
    shown = await operator.done("PUT", PROD, **weighted(("v1", 50), ("v2", 50)), **READY)
    assert [(each["version"], each["weight"]) for each in shown["targets"]] == [
        ("v1", 50),
        ("v2", 50),
    ]
    digests = {each["version"]: each["digest"] for each in versions}
    counts: Counter[str] = Counter()
    for _ in range(40):
        response = await ask()
        version = response.headers["x-adapter-version"]
        assert response.headers["x-adapter-digest"] == digests[version]
        counts[version] += 1
    assert set(counts) == {"v1", "v2"} and min(counts.values()) >= 5


async def test_the_same_end_user_gets_the_same_version_each_time(
    operator: Operator, versions: list[Version], engine: StubLoop, ask: Ask
) -> None:
    body = weighted(("v1", 50), ("v2", 50), sticky_by="safety_identifier")
    await operator.done("PUT", PROD, **body, **READY)
    by_user = {
        user: set(await served(ask, 2, safety_identifier=user)) for user in map(str, range(20))
    }
    assert all(len(found) == 1 for found in by_user.values())
    assert set[str]().union(*by_user.values()) == {"v1", "v2"}


async def test_control_without_stickiness_one_end_user_gets_both(
    operator: Operator, versions: list[Version], engine: StubLoop, ask: Ask
) -> None:
    await operator.done("PUT", PROD, **weighted(("v1", 50), ("v2", 50)), **READY)
    assert set(await served(ask, 30, safety_identifier="0")) == {"v1", "v2"}


async def test_the_ledger_has_the_version_that_was_drawn(
    operator: Operator, versions: list[Version], engine: StubLoop, ask: Ask
) -> None:
    await operator.done("PUT", PROD, **weighted(("v1", 50), ("v2", 50)), **READY)
    digests = {each["version"]: each["digest"] for each in versions}
    for _ in range(6):
        response = await ask()
        number = response.json()["id"].removeprefix("cmpl-")
        row = await operator.done("GET", f"/requests/{number}-0")
        assert row["adapter_digest"] == digests[response.headers["x-adapter-version"]]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (weighted(("v1", 50), ("v2", 49)), (422, "weights_invalid")),
        (weighted(("v1", 50), ("v1", 50)), (422, "weights_invalid")),
        (weighted(("v1", 50), ("v9", 50)), (404, "not_found")),
        (weighted(("v1", 101)), (400, "invalid_value")),
        (weighted(("v1", 0), ("v2", 100)), (400, "invalid_value")),
        (weighted(("v1", 100), sticky_by="ip"), (400, "invalid_value")),
        ({"json": {}}, (400, "invalid_value")),
        ({"json": {"version": "v1", "targets": []}}, (400, "invalid_value")),
    ],
)
async def test_targets_that_cannot_be_are_refused_and_move_nothing(
    operator: Operator, versions: list[Version], body: dict[str, Any], expected: tuple[int, str]
) -> None:
    before = await operator.done("GET", PROD)
    refused = await operator.call("PUT", PROD, **body)
    status, found = code(refused)
    assert status == expected[0] and (status == 400 or found == expected[1])
    assert await operator.done("GET", PROD) == before


async def test_a_move_for_another_state_is_refused(
    operator: Operator, admin: httpx.AsyncClient, versions: list[Version]
) -> None:
    before = await operator.done("GET", PROD)
    await move(operator, "v2")
    for method, path, body in (
        ("PUT", PROD, {"version": "v3"}),
        ("POST", f"{PROD}/rollback", {}),
        ("DELETE", PROD, None),
    ):
        refused = await conditional(admin, method, path, body, before["etag"])
        assert refused.status_code in (409, 412)
        assert refused.json()["error"]["code"] == "etag_mismatch"
    now = await operator.done("GET", PROD)
    assert now["version"] == "v2"
    moved = await conditional(admin, "PUT", PROD, {"version": "v3"}, now["etag"])
    assert moved.json()["version"] == "v3"


async def test_a_move_for_any_state_makes_no_alias_where_there_is_none(
    operator: Operator, admin: httpx.AsyncClient, push: Push
) -> None:
    await push(1)
    fresh = f"{BOT}/aliases/fresh"
    for if_match, query in product(("*", '""', '"an-etag"'), ("", "?wait=1")):
        body = {"version": "v1"}
        refused = await conditional(admin, "PUT", fresh + query, body, if_match)
        assert code(refused) == (412, "etag_mismatch")
        assert refused.json()["error"]["etag"] is None
    assert code(await operator.call("GET", fresh)) == (404, "not_found")
    # Control: any state of the one that is there, and none asked for where there is none.
    there = await conditional(admin, "PUT", PROD, {"version": "v1"}, "*")
    assert there.status_code == 200, there.text
    assert (await operator.done("PUT", fresh, json={"version": "v1"}))["version"] == "v1"


async def conditional(
    admin: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None, etag: str
) -> httpx.Response:
    return await admin.request(
        method, f"/admin/v1{path}", json=body, headers={**OPERATOR, "if-match": etag}
    )


async def move(operator: Operator, version: str) -> dict[str, Any]:
    return await operator.done("PUT", PROD, json={"version": version})


async def back(operator: Operator, **body: str) -> str:
    moved = await operator.done("POST", f"{PROD}/rollback", json=body)
    return str(moved["version"])


async def test_a_roll_back_goes_back_in_history_and_never_forward(
    operator: Operator, versions: list[Version]
) -> None:
    for version in ("v2", "v3"):
        await move(operator, version)

    assert [await back(operator) for _ in range(2)] == ["v2", "v1"]
    refused = await operator.call("POST", f"{PROD}/rollback")
    assert code(refused) == (409, "no_previous")

    await move(operator, "v3")
    assert await back(operator) == "v1"


async def test_the_history_says_where_the_alias_pointed_and_a_roll_back_finds_any_of_it(
    operator: Operator, versions: list[Version]
) -> None:
    await operator.done("PUT", PROD, **weighted(("v1", 95), ("v2", 5), sticky_by="user"))
    await move(operator, "v2")
    await back(operator)

    history = (await operator.done("GET", f"{PROD}/history"))["data"]
    pointed = [[(each["version"], each["weight"]) for each in row["targets"]] for row in history]
    canary = [("v1", 95), ("v2", 5)]
    assert pointed == [canary, [("v2", 100)], canary, [("v1", 100)]]
    assert history[0]["restores"] == history[2]["id"]
    assert [row["sticky_by"] for row in history] == ["user", None, "user", None]
    assert [row["actor"] for row in history] == ["operator"] * 3 + ["system"]

    assert await back(operator, to=history[1]["id"]) == "v2"
    pages = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = await operator.done("GET", f"{PROD}/history", params=query)
        pages += [row["id"] for row in page["data"]]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert pages[1:] == [row["id"] for row in history] and len(pages) == 5
    absent = await operator.call("POST", f"{PROD}/rollback", json={"to": f"alc_{'0' * 26}"})
    assert code(absent) == (404, "not_found")


async def test_a_roll_back_to_a_version_that_is_gone_is_refused(
    operator: Operator, versions: list[Version]
) -> None:
    await move(operator, "v2")
    await operator.done("DELETE", f"{BOT}/versions/v1")
    refused = await operator.call("POST", f"{PROD}/rollback")
    assert code(refused) == (409, "version_not_active")
    assert (await operator.done("GET", PROD))["version"] == "v2"


async def test_another_targets_end_sends_nobody_to_the_canary(
    operator: Operator,
    versions: list[Version],
    engine: StubLoop,
    ask: Ask,
    owner: Database,
) -> None:
    """The stable version ceases to be served: those who drew it are told, and nobody moves."""
    body = weighted(("v1", 50), ("v2", 50), sticky_by="user")
    await operator.done("PUT", PROD, **body, **READY)
    before = {
        user: (await ask(user=user)).headers["x-adapter-version"] for user in "abcdefghijklmnopqrst"
    }
    async with owner.session() as session:
        await session.execute(
            text(
                "UPDATE adapter_versions SET state = 'deprecated', shutdown_on = '2020-01-01'"
                " WHERE number = 1"
            )
        )
        await session.commit()
    for user, version in before.items():
        response = await ask(user=user)
        if version == "v1":
            assert code(response) == (404, "model_not_found")
        else:
            assert response.headers["x-adapter-version"] == "v2"
    assert set(before.values()) == {"v1", "v2"}


async def test_an_alias_that_an_older_process_moves_means_what_that_says(
    operator: Operator, versions: list[Version], owner: Database
) -> None:
    await operator.done("PUT", PROD, **weighted(("v1", 60), ("v2", 40)))
    async with owner.session() as session:
        await session.execute(
            text("UPDATE adapter_aliases SET version_id = :version WHERE alias = 'prod'"),
            {"version": versions[2]["id"]},
        )
        await session.commit()
    shown = await operator.done("GET", PROD)
    assert [(each["version"], each["weight"]) for each in shown["targets"]] == [("v3", 100)]


async def test_moves_at_once_come_one_after_another(
    operator: Operator, versions: list[Version]
) -> None:
    await asyncio.gather(*(move(operator, f"v{1 + number % 3}") for number in range(12)))
    history = (await operator.done("GET", f"{PROD}/history", params={"limit": 50}))["data"]
    now = await operator.done("GET", PROD)
    assert len(history) == 13
    assert [each["version"] for each in history[0]["targets"]] == [now["version"]]


async def test_another_tenants_alias_is_not_found(
    operator: Operator, api: httpx.AsyncClient, versions: list[Version]
) -> None:
    globex = await operator.new_tenant("globex")
    for method, path in (
        ("GET", ""),
        ("GET", "/history"),
        ("PUT", ""),
        ("POST", "/rollback"),
        ("DELETE", ""),
    ):
        body = {"version": "v2"} if method == "PUT" else None
        foreign, absent = [
            await api.request(
                method,
                f"/v1/adapters/{name}/aliases/prod{path}",
                headers=globex.headers,
                json=body,
            )
            for name in ("bot", "nothing")
        ]
        assert code(foreign) == code(absent) == (404, "not_found"), (method, path)
        assert foreign.content == absent.content
    assert (await operator.done("GET", PROD))["version"] == "v1"


async def test_a_tenant_moves_its_own_alias_by_the_same_rules(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant, versions: list[Version]
) -> None:
    path = "/v1/adapters/bot/aliases/prod"
    moved = await api.put(path, json={"version": "v2"}, headers=acme.headers)
    assert moved.json()["version"] == "v2"
    rolled = await api.post(f"{path}/rollback", headers=acme.headers)
    assert rolled.json()["version"] == "v1"
    history = (await operator.done("GET", f"{PROD}/history"))["data"]
    assert history[0]["actor"] == acme.key_id
