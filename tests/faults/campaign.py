"""Kills under load: first the answers of an undisturbed run, then the same questions while it goes.

Knows nothing of what is killed. Invariant: a verdict is reached only when the ledger has taken in
all that was accepted, or had time enough to.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence

from app.db import Database
from tests.app.requests.conftest import Rows
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually
from tests.faults.clients import Clients, Question, some_questions
from tests.faults.history import Answer, Outcome, Row, Verdict, judge
from tests.faults.stack import Stack

NUM_IN_FLIGHT = 16
NUM_QUESTIONS = 24
MAX_TOKENS = (8, 24)
STEP_MS = 30
LEDGER_TIMEOUT_S = 60.0
VERDICT = "verdict"
COUNTS = ("kills", "lost", "duplicated", "byte-different", "ledger difference")
KILLS = {  # of engines, API processes, Redis, real engines
    "few": (20, 5, 5, 2),
    "many": (200, 50, 20, 10),
    "soak": (2000, 500, 200, 100),
}


Recorder = Callable[[str, object], None]


def amount() -> str:
    """`few`, `many` or `soak`."""
    return os.environ.get("TEST_FAULTS", "few")


def num_kills(what: str) -> int:
    """How many this run wants, of `engine`, `api`, `redis` or `real`: see TEST_FAULTS."""
    counts = KILLS[amount()]
    return counts[("engine", "api", "redis", "real").index(what)]


def tell(record_property: Recorder, verdict: Verdict, what: str, *, num_kills: int = 0) -> None:
    """Have the verdict printed at the end of the run, and fail where it is not clean."""
    found = verdict.lost, verdict.duplicated, verdict.different, verdict.ledger
    counts = zip(COUNTS, (num_kills, *map(len, found)), strict=True)
    record_property(VERDICT, json.dumps({"summary": verdict.summary(what), **dict(counts)}))
    assert verdict.is_clean, verdict.details()


class Campaign:
    """Of one stack; several runs one after the other."""

    def __init__(
        self,
        stack: Stack,
        owner_url: str,
        rng: random.Random,
        adapters: Mapping[str, Mapping[str, bytes]],
    ) -> None:
        self.stack = stack
        self.rng = rng
        self.owner_url = owner_url
        self.headers = stack.new_key()
        self.digests: dict[str, str | None] = {MODEL_ID: None}
        """By model; the base has none."""
        self.digests |= {name: stack.new_adapter(name, files) for name, files in adapters.items()}

    def short_questions(self) -> list[Question]:
        """Answers of a few hundred milliseconds, of a stub engine."""
        models = list(self.digests)
        return some_questions(NUM_QUESTIONS, MAX_TOKENS, random.Random(1), models)

    def clients(self, questions: Sequence[Question], num: int = NUM_IN_FLIGHT) -> Clients:
        return Clients(self.stack.urls, self.headers, questions, num, self.rng)

    async def undisturbed(self, questions: Sequence[Question]) -> dict[Hashable, Answer]:
        """What each question is answered; every one is asked twice, and answered alike."""
        answers: dict[Hashable, Answer] = {}
        async with self.clients(questions, num=0) as clients:
            for _ in range(2):
                for call in await asyncio.gather(*map(clients.ask, questions)):
                    assert call.outcome is Outcome.OK, call
                    answer = Answer(call.text, call.num_tokens or 0, call.finish_reasons[-1])
                    assert answers.setdefault(call.asked, answer) == answer
        return answers

    async def run(
        self,
        questions: Sequence[Question],
        answers: Mapping[Hashable, Answer],
        disturb: Callable[[Clients], Awaitable[None]],
        *,
        may_cut: bool = False,
        innocent: frozenset[str] = frozenset({"not_enqueued"}),
    ) -> Verdict:
        """Ask all the time while `disturb` goes on, and judge."""
        owner = Database(self.owner_url, pool_size=1)
        rows = Rows(owner)
        before = {row["request_id"] for row in await rows.requests()}
        async with self.clients(questions) as clients:
            await disturb(clients)
        await _all_ended(rows)
        found = [row for row in await _rows(rows) if row.request_id not in before]
        await owner.close()
        return judge(clients.calls, answers, found, may_cut=may_cut, innocent=innocent)


async def _all_ended(rows: Rows) -> None:
    """Or so long that the verdict may say which have not."""
    give_up_at = time.monotonic() + LEDGER_TIMEOUT_S

    async def is_over() -> bool:
        states = {row["state"] for row in await rows.requests()}
        return states == {"ended"} or time.monotonic() > give_up_at

    await eventually(is_over, timeout_s=2 * LEDGER_TIMEOUT_S)


async def _rows(rows: Rows) -> list[Row]:
    finals: dict[str, list[tuple[str, int, int]]] = {}
    for event in await rows.finals():
        final = (event["finish_reason"], event["num_generated_tokens"], event["epoch"])
        finals.setdefault(event["request_id"], []).append(final)
    return [
        Row(row["request_id"], row["state"], finals.get(row["request_id"], []))
        for row in await rows.requests()
    ]
