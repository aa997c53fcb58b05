"""The price book: kept by operators, never changed behind what was used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from app.context import AppContext
from app.db import Database, billing_scope, tenant_scope
from app.prices.repository import price_in_force
from tests.builders.clock import Clock
from tests.builders.operator import Operator
from tests.builders.tiny_base import MODEL_ID

PRICE: dict[str, Any] = {"currency": "usd", "input": "0.15", "output": "0.6"}
HOUR = timedelta(hours=1)


def hour_of(at: datetime) -> int:
    return int(at.replace(minute=0, second=0, microsecond=0).timestamp())


async def test_a_price_defaults_to_the_served_base_this_hour_and_no_discount(
    operator: Operator, clock: Clock
) -> None:
    price = await operator.done("POST", "/prices", json=PRICE)
    assert (price["base_model"], price["tenant_id"]) == (MODEL_ID, None)
    assert (price["input"], price["cached"], price["output"]) == ("0.15", "0.15", "0.6")
    assert price["effective_at"] == hour_of(clock.now())
    assert await operator.done("GET", f"/prices/{price['id']}") == price
    assert (await operator.done("GET", "/prices"))["data"] == [price]


async def test_a_price_that_was_in_force_stays_and_a_future_one_can_be_taken_back(
    operator: Operator, clock: Clock
) -> None:
    now = await operator.done("POST", "/prices", json=PRICE)
    next_hour = hour_of(clock.now() + HOUR)
    later = await operator.done("POST", "/prices", json={**PRICE, "effective_at": next_hour})

    refused = await operator.call("DELETE", f"/prices/{now['id']}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "price_in_force")
    assert (await operator.done("DELETE", f"/prices/{later['id']}"))["deleted"]
    assert (await operator.call("GET", f"/prices/{later['id']}")).status_code == 404


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({**PRICE, "effective_at": 1234}, 422, "not_a_whole_hour"),
    ({**PRICE, "input": "-1"}, 400, "invalid_value"),
    ({**PRICE, "input": "0.0000001"}, 400, "invalid_value"),
    ({**PRICE, "input": "NaN"}, 400, "invalid_value"),
    ({**PRICE, "currency": "dollars"}, 400, "invalid_value"),
    ({**PRICE, "tenant": "nobody"}, 404, "not_found"),
    ({**PRICE, "colour": "red"}, 400, "unknown_parameter"),
    ({"currency": "usd", "input": 1}, 400, "missing_required_parameter"),
]


async def test_a_wrong_price_is_refused_by_name(operator: Operator) -> None:
    for body, status, code in WRONG:
        answer = await operator.call("POST", "/prices", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


async def test_two_prices_of_one_hour_are_refused_for_everybody_as_for_one_tenant(
    operator: Operator, clock: Clock
) -> None:
    await operator.new_tenant("acme")
    later = {**PRICE, "effective_at": hour_of(clock.now() + HOUR)}
    for whose in ({}, {"tenant": "acme"}):
        await operator.done("POST", "/prices", json={**later, **whose})
        answer = await operator.call("POST", "/prices", json={**later, **whose})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "price_conflict")


async def test_what_was_used_keeps_its_price(operator: Operator, clock: Clock) -> None:
    """Where none was, there may be one for the past, up to the hour from which there is one."""
    await operator.new_tenant("acme")
    this_hour = hour_of(clock.now())
    own = {"tenant": "acme"}
    steps: list[tuple[dict[str, Any], int, int]] = [  # whose, hours from now, answer
        ({}, -4, 201),
        ({}, -6, 201),  # prices two hours that had none
        ({}, -5, 409),
        ({}, -4, 409),
        ({}, 0, 409),
        (own, -5, 409),  # everybody's price was its own
        (own, 0, 409),
        (own, -7, 409),  # one hour had none, and six had
        (own, 1, 201),
        (own, 0, 409),
        ({"base_model": "another"}, -5, 201),
        ({**own, "base_model": "third"}, -2, 201),
        ({"base_model": "third"}, -3, 201),  # its own price stays the tenant's
        ({**own, "base_model": "third"}, -3, 409),  # everybody's is its own in that hour
    ]
    for whose, hours, status in steps:
        body = {**PRICE, **whose, "effective_at": this_hour + hours * 3600}
        answer = await operator.call("POST", "/prices", json=body)
        assert answer.status_code == status, (whose, hours, answer.text)
        assert status == 201 or answer.json()["error"]["code"] == "price_in_force"


async def test_a_price_that_follows_one_holds_from_the_next_hour_on(
    operator: Operator, clock: Clock
) -> None:
    await operator.new_tenant("acme")
    this_hour = hour_of(clock.now())
    for whose, starts_at in (({}, 0), ({}, 3600), ({"tenant": "acme"}, 3600)):
        price = await operator.done("POST", "/prices", json={**PRICE, **whose})
        assert price["effective_at"] == this_hour + starts_at


async def test_the_price_in_force_is_the_tenants_own_else_everybodys(
    operator: Operator, context: AppContext
) -> None:
    acme, globex = [(await operator.new_tenant(name)).id for name in ("acme", "globex")]
    at = datetime(2026, 3, 5, 12, tzinfo=UTC)
    for output, hours, whose in ((3, 1, {"tenant": acme}), (2, 2, {}), (1, 0, {})):
        effective_at = int((at + hours * HOUR).timestamp())
        body = {**PRICE, "output": output, "effective_at": effective_at, **whose}
        await operator.done("POST", "/prices", json=body)

    async def output_price(database: Database, tenant_id: str, at: datetime) -> Decimal | None:
        async with database.session() as session:
            await tenant_scope(session, tenant_id)
            own = await price_in_force(session, tenant_id, MODEL_ID, at)
            await billing_scope(session)
            seen = await price_in_force(session, tenant_id, MODEL_ID, at)
            assert (own and own.id) == (seen and seen.id)
            return None if own is None else own.output_price

    for tenant_id, hours, expected in (
        (acme, -0.1, None),
        (acme, 0, 1),
        (acme, 1.5, 3),
        (acme, 9, 3),
        (globex, 1.5, 1),
        (globex, 2, 2),
    ):
        assert await output_price(context.database, tenant_id, at + hours * HOUR) == expected
