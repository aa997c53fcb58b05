"""Swaps, roll-backs and deletions of one adapter's versions, and clients that ask it meanwhile.

Knows nothing of which engine answers. Invariant: an answer is right where its digest was one that
the alias meant between question and answer, and its text is that digest's own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.completions.choice import Choice
from app.context import AppContext
from engine.messages import FinishReason, TokenOutput
from tests.builders.operator import Operator
from tests.corpus.lifecycle.conftest import BOT, Ask, Push, Version

NUM_LIVE = 4
NUM_CLIENTS = 6
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


async def client(ask: Ask, history: History, is_over: asyncio.Event, **fields: Any) -> None:
    """Ask again and again; `fields` are the request's."""
    while not is_over.is_set():
        asked_at = time.monotonic()
        note(history, asked_at, await ask("bot", **fields))


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
        await self._operator.done("PUT", PROD, json={"targets": targets}, params={"wait": 60})
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


async def operate_under_traffic(
    hand: Hand, ask: Ask, history: History, *, num: int, **fields: Any
) -> None:
    """So many operations, one after another, while clients ask; `prod` means v1 before."""
    await hand.fill()
    first = hand.live["v1"]
    history.move(0.0, frozenset({first["digest"]}))
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_CLIENTS):
            group.create_task(client(ask, history, is_over, **fields))
        for _ in range(num):
            await hand.operate()
        is_over.set()
    assert hand.done.keys() == {"swap", "roll back", "delete"} and hand.done.total() == num


def text_of(context: AppContext, num_prompt_tokens: int, tokens: list[int]) -> str:
    """Greedy tokens as a client is shown them: up to the end of the sequence, if it ends."""
    ends = [i for i, token in enumerate(tokens) if token in context.base.eos_token_ids]
    shown = tokens[: ends[0] + 1] if ends else tokens
    choice = Choice(0, context.tokenizer.start_detokenizer(), [], context.base.eos_token_ids)
    output = TokenOutput(
        request_id="solo",
        epoch=0,
        index=0,
        token_ids=shown,
        num_prompt_tokens=num_prompt_tokens,
        num_generated_tokens=len(shown),
        finish_reason=FinishReason.LENGTH,
    )
    return choice.take(output).text
