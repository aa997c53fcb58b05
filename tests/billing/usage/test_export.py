"""Events reach the operator's system at least once, whatever it says, and say what is billed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import HttpUrl, SecretStr

from app.settings import Settings
from app.usage.export import UsageExporter
from tests.builders.ledger import Ledger
from tests.builders.receiver import Receiver
from tests.builders.server import serving
from tests.builders.usage import make_record, new_request

OUTBOX = "SELECT * FROM usage_outbox ORDER BY request_id"
DUE = "UPDATE usage_outbox SET not_before = now()"
REQUIRED = {"id", "source", "specversion", "type"}  # CloudEvents 1.0


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
async def exporter(
    ledger: Ledger, settings: Settings, receiver: Receiver
) -> AsyncIterator[UsageExporter]:
    async with serving(receiver.app) as url:
        changed = {
            "usage_export_url": HttpUrl(f"{url}/events"),
            "usage_export_token": SecretStr("of-the-receiver"),
        }
        exporter = UsageExporter(ledger.database, settings.model_copy(update=changed))
        yield exporter
        await exporter.close()


def subjects(receiver: Receiver) -> list[str]:
    return sorted(event["subject"] for event in receiver.events)


async def test_an_event_says_what_is_billed_and_is_delivered_once(
    ledger: Ledger, exporter: UsageExporter, receiver: Receiver
) -> None:
    request = replace(new_request("req_a"), adapter_id="adp_a", base_model_id="base")
    await ledger.serve(request, 10, num_cached_tokens=2)
    assert await exporter.run_once() == 1
    assert await exporter.run_once() == 0

    [call], [event] = receiver.calls, receiver.events
    assert call.headers["content-type"] == "application/cloudevents-batch+json"
    assert call.headers["authorization"] == "Bearer of-the-receiver"
    assert event.keys() >= REQUIRED and event["specversion"] == "1.0"
    assert event["id"] == "ten_a/req_a/1"
    data: dict[str, Any] = event["data"]
    assert (data["input_tokens"], data["cached_tokens"], data["output_tokens"]) == (3, 2, 10)
    assert (data["key_id"], data["adapter_id"], data["finish_reason"]) == ("key_a", "adp_a", "stop")
    [row] = await ledger.rows(OUTBOX)
    assert row["delivered"] == data and row["delivered_revision"] == 1


async def test_a_later_revision_follows_and_replaces(
    ledger: Ledger, exporter: UsageExporter, receiver: Receiver
) -> None:
    await ledger.serve(new_request("req_a"), 10)
    await exporter.run_once()
    await ledger.write(make_record("req_a", generated=12, epoch=2))
    await exporter.run_once()
    said = [(event["id"], event["data"]["output_tokens"]) for event in receiver.events]
    assert said == [("ten_a/req_a/1", 10), ("ten_a/req_a/2", 12)]


async def test_what_was_not_taken_is_tried_again_later_each_time(
    ledger: Ledger, exporter: UsageExporter, receiver: Receiver
) -> None:
    await ledger.serve(new_request("req_a"))
    for attempts, status in enumerate((500, 503, 429, 401, 302), start=1):
        receiver.status = status
        assert await exporter.run_once() == 1
        assert await exporter.run_once() == 0, "not at once"
        [row] = await ledger.rows(OUTBOX)
        assert (row["attempts"], row["delivered_revision"]) == (attempts, 0)
        await ledger.rows(DUE)
    receiver.status = 204
    assert await exporter.run_once() == 1
    assert subjects(receiver) == ["req_a"]


async def test_one_event_that_is_refused_does_not_bar_the_way(
    ledger: Ledger, exporter: UsageExporter, receiver: Receiver
) -> None:
    names = [f"req_{i}" for i in range(7)]
    for name in names:
        await ledger.serve(new_request(name))
    receiver.refused = {"req_3"}
    assert await exporter.run_once() == 7
    assert subjects(receiver) == [name for name in names if name != "req_3"]

    receiver.refused.clear()
    await ledger.rows(DUE)
    assert await exporter.run_once() == 1
    assert subjects(receiver) == names


async def test_a_receiver_that_is_not_there_costs_nothing(
    ledger: Ledger, settings: Settings, receiver: Receiver
) -> None:
    await ledger.serve(new_request("req_a"))
    async with serving(receiver.app) as url:
        gone = HttpUrl(f"{url}/events")
    exporter = UsageExporter(
        ledger.database, settings.model_copy(update={"usage_export_url": gone})
    )
    assert await exporter.run_once() == 1
    [row] = await ledger.rows(OUTBOX)
    assert (row["attempts"], row["delivered_revision"]) == (1, 0)
    await exporter.close()


async def test_an_exporter_that_dies_after_the_receiver_took_it_sends_it_again(
    ledger: Ledger, exporter: UsageExporter, receiver: Receiver
) -> None:
    await ledger.serve(new_request("req_a"))
    await exporter.run_once()
    # What the dead one did not get to: the receiver has it, the outbox does not know.
    await ledger.rows("UPDATE usage_outbox SET delivered_revision = 0, not_before = now()")
    await exporter.run_once()
    assert [event["id"] for event in receiver.events] == ["ten_a/req_a/1"] * 2


async def test_without_a_url_nothing_is_sent_and_nothing_forgotten(
    ledger: Ledger, settings: Settings
) -> None:
    await ledger.serve(new_request("req_a"))
    exporter = UsageExporter(ledger.database, settings)
    assert await exporter.run_once() == 0
    [row] = await ledger.rows(OUTBOX)
    assert (row["attempts"], row["delivered_revision"]) == (0, 0)
    await exporter.close()
