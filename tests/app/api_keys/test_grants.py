"""A key hands on no more than it has, whatever way it takes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api_keys.grants import Grant, check_grant
from app.errors import PermissionDeniedError
from tests.builders.clock import Clock
from tests.builders.held_rows import answered_after
from tests.builders.operator import Operator
from tests.builders.principals import make_principal
from tests.fixtures.servers import TestDatabase

SCOPES = ["adapters:write", "inference", "keys:write"]
MODELS = ["a", "b", "c"]
T0 = datetime(2026, 1, 1, tzinfo=UTC)

scopes = st.sets(st.sampled_from(SCOPES), min_size=1)
models = st.none() | st.sets(st.sampled_from(MODELS))
ends = st.none() | st.integers(0, 5).map(lambda hours: T0 + timedelta(hours=hours))


def may(grant: tuple[set[str], set[str] | None, datetime | None]) -> dict[str, set[object]]:
    """What a key may do, spelled out: each scope, each model, each hour."""
    its_scopes, its_models, end = grant
    hours = [T0 + timedelta(hours=hour) for hour in range(-1, 7)]
    return {
        "scopes": set(its_scopes),
        "models": {*MODELS, "any other"} if its_models is None else set(its_models),
        "hours": {hour for hour in hours if end is None or hour < end},
    }


@given(
    granted=st.tuples(scopes, models, ends),
    grantor=st.tuples(scopes, models, ends),
)
def test_what_is_granted_is_within_what_the_grantor_may_do(
    granted: tuple[set[str], set[str] | None, datetime | None],
    grantor: tuple[set[str], set[str] | None, datetime | None],
) -> None:
    principal = make_principal(
        scopes=frozenset(grantor[0]),
        allowed_models=None if grantor[1] is None else frozenset(grantor[1]),
        expires_at=grantor[2],
    )
    is_within = all(may(granted)[kind] <= allowed for kind, allowed in may(grantor).items())
    try:
        check_grant(Grant(*granted), principal)
    except PermissionDeniedError as error:
        assert not is_within and error.code == "grant_exceeds_key"
    else:
        assert is_within


def test_an_operator_grants_what_it_likes() -> None:
    check_grant(Grant(SCOPES, None, None), None)


@pytest.fixture
async def lesser(operator: Operator, clock: Clock) -> dict[str, str]:
    """A key that makes keys, may call one adapter, and lasts an hour."""
    await operator.new_tenant("acme")
    expires_at = int(clock.now().timestamp()) + 3600
    key = await operator.new_key(
        "acme",
        scopes=["inference", "keys:write"],
        allowed_models=["support-bot"],
        expires_at=expires_at,
    )
    return {"x-api-key": key["secret"], "expires-at": str(expires_at)}


async def test_a_key_makes_keys_within_its_own_bounds_and_none_beyond(
    api: httpx.AsyncClient, lesser: dict[str, str]
) -> None:
    end = int(lesser["expires-at"])
    within = {"allowed_models": ["support-bot"], "expires_at": end}
    made = await api.post("/v1/keys", headers=lesser, json=within)
    assert made.status_code == 201 and made.json()["scopes"] == ["inference"]

    for beyond in (
        {"scopes": ["adapters:write"]},
        {"allowed_models": None},
        {"allowed_models": ["support-bot", "other"]},
        {"expires_at": None},
        {"expires_at": end + 1},
    ):
        refused = await api.post("/v1/keys", headers=lesser, json=within | beyond)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (403, "grant_exceeds_key"), beyond


CHANGES: list[tuple[str, int, str | None]] = [  # of the maker, while it makes a key
    ("UPDATE api_keys SET disabled_at = now() WHERE id = :id", 401, "key_disabled"),
    ("UPDATE api_keys SET expires_at = :now WHERE id = :id", 401, "key_expired"),
    ("DELETE FROM api_keys WHERE id = :id", 401, "invalid_api_key"),
    ("UPDATE api_keys SET expires_at = :soon WHERE id = :id", 403, "grant_exceeds_key"),
    ("""UPDATE api_keys SET limits = '{"concurrency": 1}' WHERE id = :id""", 201, None),
]


async def test_a_key_that_is_made_is_no_more_than_its_maker_is_by_then(
    api: httpx.AsyncClient, operator: Operator, database: TestDatabase, clock: Clock
) -> None:
    await operator.new_tenant("acme")
    times = {"now": clock.now(), "soon": clock.now() + timedelta(hours=1)}
    for change, status, code in CHANGES:
        maker = await operator.new_key("acme", scopes=["inference", "keys:write"])
        headers = {"x-api-key": maker["secret"]}
        answer = await answered_after(
            database.owner_url,
            change,
            api.post("/v1/keys", headers=headers, json={"scopes": ["inference"]}),
            id=maker["id"],
            **{name: at for name, at in times.items() if f":{name}" in change},
        )
        assert answer.status_code == status, (change, answer.text)
        assert code is None or answer.json()["error"]["code"] == code
    made = await operator.done("GET", f"/tenants/acme/keys/{answer.json()['id']}/limits")
    assert made["limits"] == {"concurrency": 1}


async def test_a_key_cannot_take_over_a_greater_one_by_rotating_it(
    api: httpx.AsyncClient, operator: Operator, lesser: dict[str, str]
) -> None:
    greater = await operator.new_key("acme")
    for method, suffix in (("POST", "/rotate"), ("POST", "/disable"), ("DELETE", "")):
        refused = await api.request(method, f"/v1/keys/{greater['id']}{suffix}", headers=lesser)
        assert refused.json()["error"]["code"] == "grant_exceeds_key"
    works = await api.get("/v1/models", headers={"x-api-key": greater["secret"]})
    assert works.status_code == 200


async def test_a_tenants_own_keys_are_all_it_sees(
    api: httpx.AsyncClient, operator: Operator, lesser: dict[str, str]
) -> None:
    globex = await operator.new_tenant("globex")
    listed = (await api.get("/v1/keys", headers=lesser)).json()["data"]
    assert len(listed) == 2 and all(key["id"] != globex.key_id for key in listed)
    foreign = await api.get(f"/v1/keys/{globex.key_id}", headers=lesser)
    absent = await api.get(f"/v1/keys/key_{'0' * 26}", headers=lesser)
    assert foreign.status_code == absent.status_code == 404
    assert foreign.content == absent.content
