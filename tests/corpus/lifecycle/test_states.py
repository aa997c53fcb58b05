"""A version goes from state to state along one table, and every step of it is on record."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import product
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from app.adapters.states import (
    ACTIVE,
    DELETED,
    EDGES,
    GONE,
    NAMEABLE,
    NEEDS_BYTES,
    REJECTED,
    STATES,
    VERIFYING,
    change_state,
    is_nameable,
    successors,
)
from app.context import AppContext
from app.db import tenant_scope
from app.errors import ConflictError
from app.tables import AdapterVersion
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.clock import Clock
from tests.builders.operator import Operator, Tenant
from tests.corpus.lifecycle.conftest import BOT, Ask, Push, Version, code

V1, V2 = f"{BOT}/versions/v1", f"{BOT}/versions/v2"


@pytest.mark.parametrize(("before", "after"), list(product(STATES, STATES)))
def test_a_state_changes_along_an_edge_of_the_table_and_no_other_way(
    before: str, after: str
) -> None:
    version = AdapterVersion(number=1, state=before)
    if (before, after) in EDGES:
        assert change_state(version, after) == EDGES[before, after]
        assert version.state == after
    else:
        with pytest.raises(ConflictError) as refusal:
            change_state(version, after)
        assert refusal.value.code == "version_state_conflict"
        assert refusal.value.details["may_become"] == successors(before)
        assert version.state == before


def test_every_state_but_the_first_is_reached_and_every_one_but_the_last_is_left() -> None:
    assert {after for _, after in EDGES} == set(STATES)
    assert {before for before, _ in EDGES} == set(STATES) - {DELETED}
    assert set(NAMEABLE) < set(NEEDS_BYTES) and not set(NEEDS_BYTES) & {*GONE, REJECTED}
    assert all(successors(state)[-1:] == ["deleting"] for state in NEEDS_BYTES)


def test_a_deprecated_version_is_served_until_its_day_and_not_on_it() -> None:
    day = date(2030, 1, 1)
    version = AdapterVersion(number=1, state="deprecated", shutdown_on=day)
    assert is_nameable(version, day - timedelta(days=1))
    assert not is_nameable(version, day)
    assert is_nameable(AdapterVersion(number=1, state=ACTIVE, shutdown_on=None), day)
    assert not is_nameable(AdapterVersion(number=1, state=VERIFYING, shutdown_on=None), day)


async def actions_on(operator: Operator, target: str) -> list[str]:
    """What the audit log says of an object, in order."""
    events = (await operator.done("GET", "/audit/acme", params={"limit": 100}))["data"]
    chain = sorted(events, key=lambda event: event["seq"])
    return [event["action"] for event in chain if event["target"] == target]


async def states_after(operator: Operator, steps: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [
        (await operator.done("POST", f"{V2}/{verb}", **options))["state"] for verb, options in steps
    ]


async def test_each_edge_that_is_gone_along_is_an_event_of_the_audit_log(
    operator: Operator, versions: list[Version]
) -> None:
    far = {"json": {"date": "2999-12-31"}}
    steps = [("deprecate", far), ("activate", {}), ("deprecate", {}), ("archive", {})]
    states = await states_after(operator, [*steps, ("restore", {})])
    await operator.done("DELETE", V2)
    await operator.run_jobs_after()

    assert states == ["deprecated", "active", "deprecated", "archived", "active"]
    assert (await operator.done("GET", V2))["state"] == "deleted"
    told = await actions_on(operator, versions[1]["id"])
    assert [each for each in told if each not in ("version.activated", "version.erased")] == [
        "version.uploaded",
        "version.deprecated",
        "version.deprecated",
        "version.archived",
        "version.restored",
        "version.deleted",
    ]
    assert told.count("version.activated") >= 1


async def test_the_first_version_takes_prod_and_the_audit_log_and_the_feed_say_so(
    operator: Operator, versions: list[Version]
) -> None:
    log = (await operator.done("GET", "/audit/acme", params={"limit": 100}))["data"]
    (moved,) = [event for event in log if event["action"] == "alias.moved"]
    assert moved["target"] == (await operator.done("GET", BOT))["id"] and moved["before"] is None
    assert (moved["after"]["alias"], moved["after"]["version_id"]) == ("prod", versions[0]["id"])
    feed = (await operator.done("GET", "/events", params={"limit": 1000}))["data"]
    assert [event["type"] for event in feed].count("alias.moved") == 1


async def test_a_step_that_changes_nothing_is_no_error_and_no_event(
    operator: Operator, versions: list[Version]
) -> None:
    before = await actions_on(operator, versions[1]["id"])
    assert await states_after(operator, [("activate", {})]) == ["active"]
    assert await actions_on(operator, versions[1]["id"]) == before


async def test_a_step_that_is_none_gets_409_and_changes_nothing(
    operator: Operator, versions: list[Version]
) -> None:
    for verb in ("archive", "restore"):
        refused = await operator.call("POST", f"{V2}/{verb}")
        assert code(refused) == (409, "version_state_conflict")
        assert refused.headers["x-should-retry"] == "false"
    assert (await operator.done("GET", V2))["state"] == "active"


async def test_what_an_alias_means_is_not_archived(
    operator: Operator, versions: list[Version]
) -> None:
    await operator.done("POST", f"{V1}/deprecate")
    refused = await operator.call("POST", f"{V1}/archive")
    assert code(refused) == (409, "alias_in_use")
    assert (await operator.done("GET", V1))["state"] == "deprecated"


async def test_the_day_on_which_a_version_ceases_is_to_come(
    operator: Operator, versions: list[Version], clock: Clock
) -> None:
    today = clock.now().date()
    for day in (today, today - timedelta(days=1)):
        body = {"date": day.isoformat()}
        refused = await operator.call("POST", f"{V2}/deprecate", json=body)
        assert code(refused) == (422, "date_invalid")


async def test_models_show_the_day_on_which_a_version_ceases(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant, versions: list[Version]
) -> None:
    await operator.done("POST", f"{V1}/deprecate", json={"date": "2999-12-31"})
    listed = (await api.get("/v1/models", headers=acme.headers)).json()["data"]
    (bot,) = [model for model in listed if model["id"] == "bot"]
    assert bot["shutdown_date"] == "2999-12-31"
    assert (bot["x_adapter"]["version"], bot["x_adapter"]["state"]) == ("v1", "deprecated")
    other = (await api.get("/v1/models/bot@v2", headers=acme.headers)).json()
    assert (other["shutdown_date"], other["x_adapter"]["state"]) == (None, "active")


async def test_a_version_is_not_found_from_its_day_on(
    api: httpx.AsyncClient,
    acme: Tenant,
    context: AppContext,
    push: Push,
    operator: Operator,
) -> None:
    """The day is yesterday: the registry's own clock says so, which no test moves."""
    await push(1)
    await operator.done("POST", f"{V1}/deprecate", json={"date": "2999-12-31"})
    assert (await api.get("/v1/models/bot", headers=acme.headers)).status_code == 200
    await set_shutdown(context, acme.id, date(2020, 1, 1))
    for name in ("bot", "bot@v1"):
        gone = await api.get(f"/v1/models/{name}", headers=acme.headers)
        assert code(gone) == (404, "model_not_found")
    assert "bot" not in (await api.get("/v1/models", headers=acme.headers)).text


async def test_a_version_that_is_not_to_be_active_is_validated_and_not_found(
    operator: Operator, acme: Tenant, ask: Ask, tiny_base: BaseSpec
) -> None:
    files = {name: (name, data) for name, data in adapter_files(tiny_base).items()}
    path = f"{BOT}/versions"
    sent = await operator.call("POST", path, params={"activate": False}, files=files)
    assert sent.status_code == 201
    await operator.run_jobs()
    assert (await operator.done("GET", V1))["state"] == "validated"
    assert (await operator.done("GET", BOT))["aliases"] == {}
    assert code(await ask("bot@v1")) == (404, "model_not_found")
    adapter_id = (await operator.done("GET", BOT))["id"]
    assert "alias.moved" not in await actions_on(operator, adapter_id)

    activated = await operator.done("POST", f"{V1}/activate")

    assert (activated["state"], activated["id"]) == ("active", sent.json()["id"])
    assert (await operator.done("GET", BOT))["aliases"] == {"prod": "v1"}
    assert (await actions_on(operator, adapter_id)).count("alias.moved") == 1


async def set_shutdown(context: AppContext, tenant_id: str, day: date) -> None:
    await _set(context, tenant_id, shutdown_on=day)


async def _set(context: AppContext, tenant_id: str, **values: Any) -> None:
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        await session.execute(update(AdapterVersion).values(**values))
        await session.commit()
