"""`/usage`: buckets, groups, pages, tables and money, for a tenant itself and for operators."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.builders.ledger import Ledger
from tests.builders.operator import Operator, Tenant
from tests.builders.usage import new_request

BASE = "the-base"


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme", scopes=("usage:read",))


@pytest.fixture
async def globex(operator: Operator) -> Tenant:
    return await operator.new_tenant("globex", scopes=("usage:read",))


@pytest.fixture
async def used(ledger: Ledger, acme: Tenant, globex: Tenant, noon: datetime) -> None:
    """acme: 3 requests in two hours and with two keys; globex: one."""
    hour = timedelta(hours=1)
    for tenant, at, key, version, cached in (
        (acme, noon, "key_1", "ver_1", 0),
        (acme, noon + timedelta(minutes=1), "key_2", "ver_1", 50),
        (acme, noon + hour, "key_1", "ver_2", 0),
        (globex, noon, "key_3", "ver_3", 0),
    ):
        request = replace(
            new_request(tenant_id=tenant.id, accepted_at=at),
            key_id=key,
            adapter_id="adp_1",
            adapter_version_id=version,
            base_model_id=BASE,
            num_prompt_tokens=100,
        )
        await ledger.serve(request, 10, num_cached_tokens=cached)


def asked(noon: datetime, **params: Any) -> dict[str, Any]:
    start = int(noon.timestamp())
    return {"start_time": start, "end_time": start + 7200, "bucket_width": "1h", **params}


def results(page: dict[str, Any], *fields: str) -> list[list[tuple[Any, ...]]]:
    return [
        [tuple(result[name] for name in fields) for result in bucket["results"]]
        for bucket in page["data"]
    ]


@pytest.mark.usefixtures("used")
async def test_a_tenant_is_shown_its_own_usage_and_no_others(
    api: httpx.AsyncClient, acme: Tenant, globex: Tenant, noon: datetime
) -> None:
    fields = ("num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens")
    for path in ("/v1/usage", f"/t/{acme.slug}/v1/usage"):
        answer = await api.get(path, params=asked(noon), headers=acme.headers)
        assert answer.status_code == 200
        assert results(answer.json(), *fields) == [[(2, 200, 50, 20)], [(1, 100, 0, 10)]]
    answer = await api.get("/v1/usage", params=asked(noon), headers=globex.headers)
    assert results(answer.json(), *fields) == [[(1, 100, 0, 10)], []]


@pytest.mark.usefixtures("used")
async def test_groups_split_what_together_is_the_whole(
    operator: Operator, acme: Tenant, globex: Tenant, noon: datetime
) -> None:
    page = await operator.done("GET", "/usage", params=asked(noon, group_by=["tenant", "key"]))
    assert [sorted(bucket) for bucket in results(page, "tenant_id", "api_key_id")] == [
        sorted([(acme.id, "key_1"), (acme.id, "key_2"), (globex.id, "key_3")]),
        [(acme.id, "key_1")],
    ]
    params = asked(noon, bucket_width="1d", group_by=["adapter", "version"], tenant="acme")
    page = await operator.done("GET", "/usage", params=params)
    assert results(page, "adapter_version_id", "output_tokens") == [[("ver_1", 20), ("ver_2", 10)]]
    whole = await operator.done("GET", "/usage", params=asked(noon, bucket_width="1d"))
    assert results(whole, "tenant_id", "output_tokens") == [[(None, 40)]]


@pytest.mark.usefixtures("used")
async def test_a_deleted_tenants_bill_stays(
    operator: Operator, acme: Tenant, noon: datetime
) -> None:
    await operator.done("DELETE", f"/tenants/{acme.id}")
    page = await operator.done("GET", "/usage", params=asked(noon, tenant=acme.id))
    assert results(page, "output_tokens") == [[(20,)], [(10,)]]


@pytest.mark.usefixtures("used")
async def test_pages_put_together_are_the_whole(
    api: httpx.AsyncClient, acme: Tenant, noon: datetime
) -> None:
    params = asked(noon, bucket_width="1m")
    whole = await api.get("/v1/usage", params={**params, "limit": 1440}, headers=acme.headers)
    assert not whole.json()["has_more"] and len(whole.json()["data"]) == 120
    pages: list[dict[str, Any]] = []
    while not pages or pages[-1]["has_more"]:
        page = {"page": pages[-1]["next_page"]} if pages else {}
        answer = await api.get(
            "/v1/usage", params={**params, "limit": 50, **page}, headers=acme.headers
        )
        pages.append(answer.json())
    assert [len(page["data"]) for page in pages] == [50, 50, 20]
    assert [bucket for page in pages for bucket in page["data"]] == whole.json()["data"]


@pytest.mark.usefixtures("used")
async def test_prices_turn_usage_into_exact_money(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant, noon: datetime
) -> None:
    page = await operator.done("GET", "/usage", params=asked(noon))
    assert results(page, "amounts", "num_unpriced_requests") == [[([], 3)], [([], 1)]]
    hour = int(noon.timestamp())
    listed = {"base_model": BASE, "currency": "usd", "input": "0.3", "cached": 0.1, "output": 2}
    own = {**listed, "tenant": "acme", "output": "1.000001", "effective_at": hour + 3600}
    await operator.done("POST", "/prices", json=own)
    await operator.done("POST", "/prices", json={**listed, "effective_at": hour})

    page = (await api.get("/v1/usage", params=asked(noon), headers=acme.headers)).json()
    assert results(page, "amounts", "num_unpriced_requests") == [
        # 150 at 0.3, 50 at 0.1, 20 at 2; then 100 at 0.3 and 10 at its own price
        [([{"value": "0.00009", "currency": "usd"}], 0)],
        [([{"value": "0.00004000001", "currency": "usd"}], 0)],
    ]
    whole = await operator.done("GET", "/usage", params=asked(noon, bucket_width="1d"))
    [[([amount],)]] = results(whole, "amounts")
    assert amount == {"value": "0.00018000001", "currency": "usd"}

    # What is billed is not billed otherwise later: neither for everybody nor for the one.
    for body in (listed, {**listed, "tenant": "acme"}):
        for at in (hour, hour + 1800, hour + 3600, hour + 7200):
            later = {**body, "output": "9", "effective_at": at // 3600 * 3600}
            refused = await operator.call("POST", "/prices", json=later)
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "price_in_force")
    assert await operator.done("GET", "/usage", params=asked(noon, bucket_width="1d")) == whole


@pytest.mark.usefixtures("used")
async def test_a_table_has_a_line_for_each_group_of_each_bucket(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant, noon: datetime
) -> None:
    params = asked(noon, format="csv", group_by=["version"])
    answer = await api.get("/v1/usage", params=params, headers=acme.headers)
    assert answer.headers["content-type"].startswith("text/csv")
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert [
        (line["start_time"], line["adapter_version_id"], line["output_tokens"]) for line in lines
    ] == [
        ("2026-03-05T12:00:00+00:00", "ver_1", "20"),
        ("2026-03-05T13:00:00+00:00", "ver_2", "10"),
    ]
    whole = await operator.call("GET", "/usage", params=asked(noon, format="csv"))
    assert len(whole.text.splitlines()) == 3


NONSENSE: list[tuple[dict[str, Any], str, str]] = [
    ({"start_time": ""}, "invalid_type", "start_time"),
    ({"start_time": -1}, "invalid_value", "start_time"),
    ({"end_time": 0}, "invalid_value", "end_time"),
    ({"bucket_width": "1w"}, "invalid_value", "bucket_width"),
    ({"group_by": ["tenant"]}, "invalid_value", "group_by"),
    ({"group_by": ["colour"]}, "invalid_value", "group_by[0]"),
    ({"limit": 745}, "invalid_value", "limit"),
    ({"page": "x"}, "invalid_value", "page"),
    ({"page": "99999999999"}, "invalid_value", "page"),
    ({"format": "csv", "start_time": 0}, "invalid_value", "end_time"),
]


async def test_a_question_that_makes_no_sense_is_refused_by_name(
    api: httpx.AsyncClient, acme: Tenant, noon: datetime
) -> None:
    for params, code, param in NONSENSE:
        answer = await api.get("/v1/usage", params=asked(noon, **params), headers=acme.headers)
        assert answer.status_code == 400, params
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == (code, param)


async def test_usage_needs_its_own_scope(
    api: httpx.AsyncClient, operator: Operator, acme: Tenant, noon: datetime
) -> None:
    key = await operator.new_key("acme", scopes=["inference"])
    headers = {"x-api-key": key["secret"]}
    answer = await api.get("/v1/usage", params=asked(noon), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_permissions")


async def test_an_unknown_slug_is_not_found(operator: Operator, noon: datetime) -> None:
    for path in ("/usage", "/reconcile"):
        answer = await operator.call("GET", path, params=asked(noon, tenant="nobody"))
        assert answer.status_code == 404
