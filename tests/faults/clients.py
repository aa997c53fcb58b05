"""Clients that call one after the other, and log all that they hear.

Knows nothing of engines. Invariant: what a server sends is logged as it is, and judged elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.builders.tiny_base import MODEL_ID
from tests.faults.history import Call, Outcome

PATH = "/v1/completions"
TIMEOUT_S = 60.0
PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt of token ids, whom to ask, and how to draw."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    model: str = MODEL_ID

    def body(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def some_questions(
    num: int,
    max_tokens: tuple[int, int],
    rng: random.Random,
    models: Sequence[str] = (MODEL_ID,),
    vocab_size: int = 256,
) -> list[Question]:
    """Short and long prompts; every second one is drawn with a seed, and models take turns."""
    return [
        Question(
            prompt=tuple(rng.randrange(vocab_size) for _ in range(rng.randint(2, 60))),
            max_tokens=rng.randint(*max_tokens),
            temperature=0.8 * (i % 2),
            seed=i,
            model=models[i % len(models)],
        )
        for i in range(num)
    ]


@dataclass
class Clients:
    """`async with` them: `num` calls at a time, to any of `urls()`."""

    urls: Callable[[], Sequence[str]]
    headers: Mapping[str, str]
    questions: Sequence[Question]
    num: int
    rng: random.Random
    calls: list[Call] = field(default_factory=list)
    in_flight: set[int] = field(default_factory=set)
    """Calls by their place in the log."""

    async def __aenter__(self) -> Clients:
        self._is_over = False
        self._http = httpx.AsyncClient(headers=self.headers, timeout=TIMEOUT_S)
        self._tasks = [asyncio.create_task(self._call_again_and_again()) for _ in range(self.num)]
        return self

    async def __aexit__(self, *_: object) -> None:
        """What has begun ends by itself."""
        self._is_over = True
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    async def ask(self, question: Question) -> Call:
        """One call more."""
        call = Call(question, time.monotonic())
        self.calls.append(call)
        place = len(self.calls) - 1
        self.in_flight.add(place)
        try:
            await self._ask(call, question)
        except httpx.TransportError as error:
            call.why = type(error).__name__
            if call.request_id is None and isinstance(error, httpx.ConnectError):
                call.outcome = Outcome.REFUSED
        finally:
            self.in_flight.discard(place)
        return call

    async def _call_again_and_again(self) -> None:
        while not self._is_over:
            call = await self.ask(self.rng.choice(self.questions))
            if call.outcome is not Outcome.OK:
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, call: Call, question: Question) -> None:
        url = self.rng.choice(self.urls())
        async with self._http.stream("POST", f"{url}{PATH}", json=question.body()) as response:
            if response.status_code != 200:
                await response.aread()
                call.outcome = Outcome.REFUSED
                call.why = f"{response.status_code} {response.json()['error']['code']}"
                return
            heard_at = call.invoked_at
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    now = time.monotonic()
                    call.longest_gap_s = max(call.longest_gap_s, now - heard_at)
                    heard_at = now
                    hear(call, line.removeprefix("data: "))


def hear(call: Call, data: str) -> None:
    """Write down one event of an answer."""
    if data == "[DONE]":
        call.num_ends += 1
        call.outcome = Outcome.OK
        return
    event = json.loads(data)
    if "error" in event:
        call.outcome = Outcome.FAILED
        call.why = event["error"]["code"]
        return
    call.request_id = event["id"].removeprefix("cmpl-") + "-0"
    if event.get("usage"):
        call.num_tokens = event["usage"]["completion_tokens"]
    for choice in event["choices"]:
        call.pieces.append(choice["text"])
        if choice["finish_reason"] is not None:
            call.finish_reasons.append(choice["finish_reason"])
