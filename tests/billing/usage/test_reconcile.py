"""`GET /reconcile` is balanced when all is well, and names every difference when it is not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import HttpUrl

from app.settings import Settings
from app.usage.export import UsageExporter
from app.usage.jobs import UsageJobs
from tests.builders.ledger import Ledger
from tests.builders.operator import Operator
from tests.builders.receiver import Receiver
from tests.builders.server import serving
from tests.builders.usage import make_record, new_request


@pytest.fixture
async def exporter(ledger: Ledger, settings: Settings) -> AsyncIterator[UsageExporter]:
    async with serving(Receiver().app) as url:
        changed = settings.model_copy(update={"usage_export_url": HttpUrl(f"{url}/events")})
        exporter = UsageExporter(ledger.database, changed)
        yield exporter
        await exporter.close()


@pytest.fixture
async def settled(
    ledger: Ledger, usage_jobs: UsageJobs, exporter: UsageExporter, noon: datetime
) -> None:
    """Three requests, rolled up and exported."""
    for name, accepted_at in (
        ("req_a", noon),
        ("req_b", noon),
        ("req_c", noon + timedelta(microseconds=1500)),
    ):
        await ledger.serve(new_request(name, accepted_at=accepted_at), 10)
    await usage_jobs.roll_up()
    await exporter.run_once()


async def reconciled(operator: Operator, noon: datetime, **params: Any) -> dict[str, Any]:
    start = int(noon.timestamp())
    params = {"start_time": start, "end_time": start + 3600, **params}
    return await operator.done("GET", "/reconcile", params=params)


@pytest.mark.usefixtures("settled")
async def test_what_is_equal_is_balanced(operator: Operator, noon: datetime) -> None:
    found = await reconciled(operator, noon)
    assert found["is_balanced"] and found["differences"] == []
    assert found["pending"] == {"open_requests": 0, "stale_hours": 0, "exports": 0}
    for side in ("ledger", "rolled_up", "exported"):
        totals = found["totals"][side]
        assert (totals["num_requests"], totals["output_tokens"]) == (3, 30), side
    assert found["totals"]["accepted"]["num_requests"] == 3


@pytest.mark.usefixtures("settled")
async def test_what_is_on_its_way_is_no_difference(
    ledger: Ledger, operator: Operator, noon: datetime
) -> None:
    await ledger.accept(new_request("req_open", accepted_at=noon))
    await ledger.write(make_record("req_a", generated=11, epoch=2))
    found = await reconciled(operator, noon)
    assert found["is_balanced"]
    assert found["pending"] == {"open_requests": 1, "stale_hours": 1, "exports": 1}


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    ("tampering", "kinds", "request_id"),
    [
        (
            "DELETE FROM request_events WHERE request_id = 'req_b'",
            {"not_in_ledger", "rollup_differs"},
            "req_b",
        ),
        ("DELETE FROM requests WHERE request_id = 'req_b'", {"not_accepted"}, "req_b"),
        ("DELETE FROM usage_outbox WHERE request_id = 'req_b'", {"not_exported"}, "req_b"),
        (
            "UPDATE usage_outbox SET delivered = delivered || '{\"output_tokens\": 9}'"
            " WHERE request_id = 'req_b'",
            {"export_differs"},
            "req_b",
        ),
        (
            "UPDATE request_events SET num_generated_tokens = 9 WHERE request_id = 'req_b'",
            {"export_differs", "rollup_differs"},
            "req_b",
        ),
        ("UPDATE usage_hours SET queue_ms = queue_ms + 1", {"rollup_differs"}, None),
        ("DELETE FROM usage_hours", {"rollup_differs"}, None),
        ("UPDATE usage_hours SET key_id = 'key_x'", {"rollup_differs"}, None),
    ],
)
async def test_every_difference_is_named(
    ledger: Ledger,
    operator: Operator,
    noon: datetime,
    tampering: str,
    kinds: set[str],
    request_id: str | None,
) -> None:
    await ledger.rows(tampering)
    found = await reconciled(operator, noon)
    assert not found["is_balanced"]
    assert {each["kind"] for each in found["differences"]} == kinds
    assert {kind for kind, num in found["num_differences"].items() if num} == kinds
    named = {each["request_id"] for each in found["differences"]} - {None}
    assert named == ({request_id} if request_id else set())
    elsewhere = await reconciled(operator, noon, tenant="ten_" + "0" * 26)
    assert elsewhere["is_balanced"], "it is another tenant's"


@pytest.mark.usefixtures("settled")
async def test_whatever_is_delivered_otherwise_than_it_was_used_is_a_difference(
    ledger: Ledger, operator: Operator, noon: datetime
) -> None:
    (row,) = await ledger.rows("SELECT delivered FROM usage_outbox WHERE request_id = 'req_b'")
    sent = row["delivered"]
    assert {"base_model_id", "service_tier", "accepted_at", "queue_ms"} <= sent.keys()
    change = "UPDATE usage_outbox SET delivered = CAST(:data AS jsonb) WHERE request_id = 'req_b'"
    for name in sent:
        without = {field: value for field, value in sent.items() if field != name}
        for told in (sent | {name: "another"}, without):
            await ledger.rows(change, data=json.dumps(told))
            found = await reconciled(operator, noon)
            assert found["num_differences"]["export_differs"] == 1, (name, told)
    await ledger.rows(change, data=json.dumps(sent))
    assert (await reconciled(operator, noon))["is_balanced"]  # the control


@pytest.mark.usefixtures("settled")
async def test_more_differences_than_are_named_are_counted(
    ledger: Ledger, operator: Operator, noon: datetime
) -> None:
    await ledger.rows("DELETE FROM usage_outbox")
    found = await reconciled(operator, noon, limit=2)
    assert found["num_differences"]["not_exported"] == 3 and len(found["differences"]) == 2


async def test_too_long_a_time_is_refused(operator: Operator, noon: datetime) -> None:
    answer = await operator.call("GET", "/reconcile", params={"start_time": 0})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "end_time")
