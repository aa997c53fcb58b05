"""Swaps, roll-backs and deletions while requests run: nobody gets another version's answer.

A request carries the digest that its alias meant when it was admitted, and its text is what that
digest alone generates. TEST_FAULTS=soak: 1,000 operations; else 200.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import httpx
import pytest

from app.adapters.jobs import JobRunner
from app.adapters.residency import QueueEngines
from app.completions.choice import Choice
from app.context import AppContext
from engine.messages import AdapterRef, EngineError, FinishReason, TokenOutput
from engine.transport.levers import EngineLevers
from lora.store import AdapterMissingError
from tests.builders.operator import Operator
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_loop import StubLoop
from tests.corpus.lifecycle.conftest import BOT, Ask, Push, Version
from tests.stub_engine.runner import generate

NUM_OPERATIONS = 1_000 if os.environ.get("TEST_FAULTS") == "soak" else 200
NUM_CLIENTS = 6
NUM_LIVE = 4
MAX_TOKENS = 12
PROMPT = "Hello"
PROD = f"{BOT}/aliases/prod"


@dataclass(frozen=True, slots=True)
class Answer:
    """`digest`: as its headers have it. Times are of one clock."""

    asked_at: float
    answered_at: float
    digest: str
    text: str


@dataclass(slots=True)
class History:
    """What the alias meant, from when to when; and what clients were told."""

    solo: Callable[[str], str]
    meant: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)

    def move(self, began_at: float, digests: frozenset[str]) -> None:
        """From some moment after `began_at` on it means these."""
        self.meant.append((began_at, digests))

    def wrongs(self) -> list[str]:
        """Everything that is not as it must be."""
        found = []
        for answer in self.answers:
            if answer.digest not in self._possible(answer):
                found.append(f"{answer.digest} was not meant at the time")
            if answer.text != self.solo(answer.digest):
                found.append(f"{answer.digest} does not say {answer.text!r}")
        return found

    def _possible(self, answer: Answer) -> set[str]:
        """What the alias may have meant while it was asked: also what it was just moved from."""
        possible: set[str] = set()
        for i, (began_at, digests) in enumerate(self.meant):
            if began_at <= answer.answered_at and self._end(i) >= answer.asked_at:
                possible |= digests
        return possible

    def _end(self, place: int) -> float:
        """The move after it is done at the latest when the one after that begins."""
        return self.meant[place + 2][0] if place + 2 < len(self.meant) else float("inf")


@pytest.fixture
async def levers(redis_url: str) -> AsyncIterator[EngineLevers]:
    opened = EngineLevers(redis_url, secret=QUEUE_SECRET)
    yield opened
    await opened.close()


@pytest.fixture
def jobs(jobs: JobRunner, levers: EngineLevers) -> JobRunner:
    return replace(jobs, engines=QueueEngines(levers))


def solo_text(context: AppContext, digest: str) -> str:
    """What one adapter alone generates, as a client is shown it."""
    prompt = context.tokenizer.encode_prompt(PROMPT)
    tokens = generate(prompt, digest, MAX_TOKENS, context.base.vocab_size)
    ends = [i for i, token in enumerate(tokens) if token in context.base.eos_token_ids]
    if ends:
        tokens = tokens[: ends[0] + 1]
    choice = Choice(0, context.tokenizer.start_detokenizer(), [], context.base.eos_token_ids)
    output = TokenOutput(
        request_id="solo",
        epoch=0,
        index=0,
        token_ids=tokens,
        num_prompt_tokens=len(prompt),
        num_generated_tokens=len(tokens),
        finish_reason=FinishReason.LENGTH,
    )
    return choice.take(output).text


def missing(context: AppContext, ref: AdapterRef) -> EngineError | None:
    """The stub's adapters have no bytes, but it loads none that the store does not have."""
    try:
        context.store.fetch(ref.locator)
    except AdapterMissingError:
        return EngineError(code="adapter_missing", message="The adapter's files cannot be found.")
    return None


async def client(ask: Ask, history: History, is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        asked_at = time.monotonic()
        response = await ask("bot", prompt=PROMPT, max_tokens=MAX_TOKENS)
        note(history, asked_at, response)


def note(history: History, asked_at: float, response: httpx.Response) -> None:
    if response.status_code != 200:
        history.refusals[response.json()["error"]["code"]] += 1
        return
    answer = Answer(
        asked_at,
        time.monotonic(),
        response.headers["x-adapter-digest"],
        response.json()["choices"][0]["text"],
    )
    history.answers.append(answer)


class Hand:
    """Does one operation after another, each drawn."""

    def __init__(
        self, operator: Operator, push: Push, history: History, rng: random.Random
    ) -> None:
        self._operator = operator
        self._push = push
        self._history = history
        self._rng = rng
        self.live: dict[str, Version] = {}
        self._num_pushed = 0
        self.done: Counter[str] = Counter()

    async def fill(self) -> None:
        """Have so many versions that may be named."""
        while len(self.live) < NUM_LIVE:
            self._num_pushed += 1
            version = await self._push(self._num_pushed)
            assert version["state"] == "active"
            self.live[version["version"]] = version

    async def operate(self) -> None:
        kind = self._rng.choices(["swap", "roll back", "delete"], [80, 15, 5])[0]
        await {"swap": self._swap, "roll back": self._roll_back, "delete": self._delete}[kind]()
        self.done[kind] += 1

    async def _swap(self) -> None:
        names = self._rng.sample(sorted(self.live), self._rng.choice([1, 1, 2]))
        weights = [100] if len(names) == 1 else [90, 10]
        targets = [
            {"version": name, "weight": weight} for name, weight in zip(names, weights, strict=True)
        ]
        began_at = time.monotonic()
        # Engines are to have what it means before it moves.
        await self._operator.done("PUT", PROD, json={"targets": targets}, params={"wait": 10})
        self._moved(began_at, names)

    async def _roll_back(self) -> None:
        began_at = time.monotonic()
        response = await self._operator.call("POST", f"{PROD}/rollback")
        if response.is_success:
            names = [each["version"] for each in response.json()["targets"]]
            self._moved(began_at, names)
        else:  # what it would go back to has been deleted since, or there is nothing before
            assert response.json()["error"]["code"] in ("version_not_active", "no_previous")

    async def _delete(self) -> None:
        name = self._rng.choice(sorted(self.live))
        other = self._rng.choice(sorted(self.live.keys() - {name}))
        began_at = time.monotonic()
        pointed = await self._operator.done("GET", PROD)
        query = {"force": True, "aliases": other, "erase": True}
        await self._operator.done("DELETE", f"{BOT}/versions/{name}", params=query)
        if name in {each["version"] for each in pointed["targets"]}:
            self._moved(began_at, [other])
        del self.live[name]
        await self._operator.run_jobs()
        shown = await self._operator.done("GET", f"{BOT}/versions/{name}")
        assert shown["state"] == "deleted"
        await self.fill()

    def _moved(self, began_at: float, names: list[str]) -> None:
        digests = frozenset(self.live[name]["digest"] for name in names)
        self._history.move(began_at, digests)


@pytest.mark.timeout(0)
async def test_no_answer_is_another_versions_while_versions_are_swapped_and_deleted(
    operator: Operator, push: Push, engine: StubLoop, ask: Ask, context: AppContext
) -> None:
    solo: dict[str, str] = {}

    def known(digest: str) -> str:
        if digest not in solo:
            solo[digest] = solo_text(context, digest)
        return solo[digest]

    history = History(known)
    engine.loader.fails = lambda ref: missing(context, ref)
    hand = Hand(operator, push, history, random.Random(7))
    await hand.fill()
    first = await operator.done("GET", f"{BOT}/versions/v1")
    history.move(0.0, frozenset({first["digest"]}))
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_CLIENTS):
            group.create_task(client(ask, history, is_over))
        for _ in range(NUM_OPERATIONS):
            await hand.operate()
        is_over.set()

    assert history.wrongs() == []
    assert set(history.refusals) <= {"adapter_deleted", "adapter_missing"}, history.refusals
    assert len(history.answers) > NUM_OPERATIONS / 4
    assert len({answer.digest for answer in history.answers}) > NUM_LIVE
    assert min(hand.done.values()) > 0 and sum(hand.done.values()) == NUM_OPERATIONS
    engine.core.check_integrity()
    held = {digest for _, digest in engine.core.residency.ready_keys()}
    live = {version["digest"] for version in hand.live.values()}
    assert held <= live, "an engine holds what was deleted"


def test_control_an_answer_of_another_version_and_one_that_was_not_meant_are_noticed() -> None:
    history = History(lambda digest: f"text of {digest}")
    history.move(0.0, frozenset({"a"}))
    history.move(10.0, frozenset({"b"}))
    history.move(20.0, frozenset({"c"}))
    right = Answer(1.0, 2.0, "a", "text of a")
    during = Answer(10.5, 10.9, "a", "text of a")  # the move to b may not have been done yet
    history.answers = [right, during]
    assert history.wrongs() == []
    history.answers = [replace(right, text="text of b"), replace(right, digest="c")]
    assert len(history.wrongs()) == 3
    history.answers = [Answer(21.0, 22.0, "a", "text of a")]
    assert history.wrongs() == ["a was not meant at the time"]
