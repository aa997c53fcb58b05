"""Whatever single process crashes, what is billed is what clients were sent: everywhere the same.

The clients' transcripts, the ledger, the usage that tenants are shown, the roll-ups and what an
operator's own system received are compared after the last crash.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.db import Database
from tests.app.requests.conftest import Rows
from tests.billing.crashes import Crashes, Installation, installation
from tests.builders.operator import OPERATOR
from tests.builders.waiting import eventually
from tests.faults.campaign import amount
from tests.faults.clients import PAUSE_S, Clients, Question, some_questions
from tests.faults.history import Answer, Call, Outcome, Row, judge

pytestmark = pytest.mark.timeout(3600)

NUM_CRASHES = int(os.environ.get("TEST_CRASHES", 1000 if amount() == "soak" else 100))
NUM_CLIENTS = 16
MAX_TOKENS = (8, 100)  # past a checkpoint
INNOCENT = frozenset(
    {"not_enqueued", "queue_unavailable", "api_lost", "abort", "stop", "length", "engine_lost"}
)
SEED = 11
PATIENCE_S = 60.0
BILLING = "billing"


async def test_the_ledger_equals_what_clients_were_sent_whatever_crashes(
    tiny_base_folder: Path, tmp_path: Path, record_property: Any
) -> None:
    rng = random.Random(SEED)
    questions = some_questions(24, MAX_TOKENS, rng)
    async with installation(tiny_base_folder, tmp_path) as installed:
        owner = Database(installed.owner_url, pool_size=1)
        rows = Rows(owner)
        headers = await asyncio.to_thread(installed.stack.new_key)
        async with Clients(installed.stack.urls, headers, questions, 0, rng) as asking:
            answers = dict(await asyncio.gather(*(answer(asking, each) for each in questions)))
        crashes = Crashes(installed, rows, rng)
        async with Clients(installed.stack.urls, headers, questions, NUM_CLIENTS, rng) as clients:
            while crashes.num < NUM_CRASHES:
                await crashes.crash(clients)
        calls = [*asking.calls, *clients.calls]
        await eventually(lambda: all_ended(rows), timeout_s=60)
        finals = {row["request_id"]: row for row in await rows.finals()}
        verdict = judge(calls, answers, await ledger_rows(rows), may_cut=True, innocent=INNOCENT)
        differences = [*verdict.ledger, *cut_differences(calls, finals, answers)]
        differences += await bill_differences(installed, finals)
        control = await bill_differences(installed, with_a_token_more(finals))
        await owner.close()

    told = {"crashes": crashes.num, "ledger difference": len(differences)}
    record_property(BILLING, json.dumps(told))
    assert not verdict.lost and not verdict.duplicated and not verdict.different, verdict.details()
    assert not differences, "\n".join(differences)
    assert len(control) == 2, "a token more is seen by usage and by the receiver"
    assert all(crashes.counts.values()), crashes.counts
    assert verdict.num_ok > NUM_CRASHES and verdict.moved > 0


def test_control_a_token_more_or_less_for_who_was_cut_off_is_a_difference() -> None:
    heard = Call("asked", 0.0, request_id="one", pieces=["a", "", "b"], outcome=Outcome.CUT)
    answers = {"asked": Answer("abcd", 4, "stop")}

    def billed(num_tokens: int) -> list[str]:
        final = {"num_generated_tokens": num_tokens, "finish_reason": "api_lost"}
        return cut_differences([heard], {"one": final}, answers)

    assert [bool(billed(num)) for num in (1, 2, 4, 5)] == [True, False, False, True]


def with_a_token_more(finals: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """In one row of the ledger, as it might have been."""
    name, row = next((name, row) for name, row in finals.items() if row["num_generated_tokens"])
    return {**finals, name: {**row, "num_generated_tokens": row["num_generated_tokens"] + 1}}


async def answer(clients: Clients, question: Question) -> tuple[Question, Answer]:
    """Of an undisturbed run; a machine that is busy may have to be asked again."""
    give_up_at = time.monotonic() + PATIENCE_S
    while (call := await clients.ask(question)).outcome is not Outcome.OK:
        assert time.monotonic() < give_up_at, call
        await asyncio.sleep(PAUSE_S)
    return question, Answer(call.text, call.num_tokens or 0, call.finish_reasons[-1])


async def all_ended(rows: Rows) -> bool:
    return {row["state"] for row in await rows.requests()} == {"ended"}


async def ledger_rows(rows: Rows) -> list[Row]:
    finals = {row["request_id"]: row for row in await rows.finals()}
    return [
        Row(row["request_id"], row["state"], [_final(finals[row["request_id"]])])
        for row in await rows.requests()
    ]


def _final(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["finish_reason"], row["num_generated_tokens"], row["epoch"]


def cut_differences(
    calls: Sequence[Call], finals: dict[str, dict[str, Any]], answers: dict[Any, Answer]
) -> list[str]:
    """Who was cut off pays for what came, at least, and for no more than there was to generate."""
    found = []
    for call in calls:
        final = finals.get(call.request_id or "")
        if call.outcome is Outcome.OK or final is None:
            continue
        num_heard = sum(bool(piece) for piece in call.pieces)
        billed = final["num_generated_tokens"]
        if not num_heard <= billed <= answers[call.asked].num_tokens:
            found.append(
                f"{call.request_id} ({final['finish_reason']}): {billed} billed, {num_heard}"
                f" heard of {answers[call.asked].num_tokens}"
            )
    return found


async def bill_differences(installed: Installation, finals: dict[str, dict[str, Any]]) -> list[str]:
    """Between the ledger's rows and what is made of them for tenants and operators."""
    url = f"{installed.stack.apis[0].admin_url}/admin/v1"
    start = datetime.now(UTC) - timedelta(hours=6)
    asked = {"start_time": int(start.timestamp()), "bucket_width": "1h"}
    async with httpx.AsyncClient(base_url=url, headers=OPERATOR, timeout=60) as admin:

        async def is_settled() -> bool:
            pending = (await admin.get("/reconcile", params=asked)).json()["pending"]
            return pending["open_requests"] == pending["exports"] == 0

        await eventually(is_settled, timeout_s=60)
        reconciled = (await admin.get("/reconcile", params=asked)).json()
        usage = (await admin.get("/usage", params=asked)).json()
    found = [json.dumps(difference) for difference in reconciled["differences"]]
    shown = [result for bucket in usage["data"] for result in bucket["results"]]
    counted = {
        "num_model_requests": len(finals),
        "output_tokens": sum(row["num_generated_tokens"] for row in finals.values()),
        "input_tokens": sum(
            row["num_prompt_tokens"] for row in finals.values() if row["num_generated_tokens"]
        ),
    }
    for name, number in counted.items():
        if (total := sum(result[name] for result in shown)) != number:
            found.append(f"usage says {name} {total}, the ledger {number}")
    received = latest(installed.receiver.events)
    for request_id, row in finals.items():
        told = received.pop(request_id, None)
        if told is None or told["output_tokens"] != row["num_generated_tokens"]:
            found.append(f"{request_id}: {told} was received for {row}")
        if row["key_id"] is None:
            found.append(f"{request_id} has no key")
    return [*found, *(f"{request_id} was received for nothing" for request_id in received)]


def latest(events: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a receiver knows that replaces by revision."""
    known: dict[str, dict[str, Any]] = {}
    for data in (event["data"] for event in events):
        held = known.get(data["request_id"])
        if held is None or held["revision"] <= data["revision"]:
            known[data["request_id"]] = data
    return known
