"""One streamed chat completion, timed from outside as a client sees it.

Knows nothing of how load is made or reported. Invariant: what goes wrong with a request becomes
its `error`; it never raises, so that one bad answer does not end a run.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

_WORDS = """
river stone garden window music paper winter orange table forest silver bridge morning letter
summer island yellow market kitchen travel simple engine doctor village cotton shadow mountain
ticket harbor pencil dragon candle button pocket basket thunder copper
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A model as one tenant may ask for it. `label` names it in the report; the key never is."""

    label: str
    model: str
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times in seconds; `ttft_s` counts from when the request was *due*."""

    label: str
    due_at: float
    ended_at: float
    ttft_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None


def synthetic_prompt(seed: int, index: int, num_words: int) -> str:
    """About `num_words` tokens of plain words, other ones for every (seed, index)."""
    rng = random.Random(f"{seed}/{index}")
    vocabulary = _WORDS.split()
    words = " ".join(rng.choice(vocabulary) for _ in range(num_words))
    return f"Write a very long story that uses all of these words: {words}"


async def measure(
    client: httpx.AsyncClient, target: Target, prompt: str, *, max_tokens: int, due_at: float
) -> Sample:
    """Stream one greedy completion from `target`; `due_at` is on `time.perf_counter`'s clock."""
    watch = _Watch()
    try:
        await _stream(client, target, prompt, max_tokens, watch)
    except httpx.HTTPError as error:
        watch.error = watch.error or type(error).__name__
    arrivals = watch.arrivals
    return Sample(
        label=target.label,
        due_at=due_at,
        ended_at=time.perf_counter(),
        ttft_s=arrivals[0] - due_at if arrivals else None,
        gaps_s=tuple(b - a for a, b in itertools.pairwise(arrivals)),
        prompt_tokens=watch.prompt_tokens,
        output_tokens=watch.output_tokens,
        error=watch.error or watch.missing(),
    )


class _Watch:
    """What has been seen of one stream."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.has_finish_reason = False
        self.has_usage = False
        self.is_done = False
        self.error: str | None = None

    def see(self, event: dict[str, Any]) -> None:
        if error := event.get("error"):
            self.error = str(error.get("code") or error.get("type") or "error")
            return
        if usage := event.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.output_tokens = usage["completion_tokens"]
            self.has_usage = True
        for choice in event.get("choices", ()):
            if choice.get("delta", {}).get("content"):
                self.arrivals.append(time.perf_counter())
            self.has_finish_reason |= choice.get("finish_reason") is not None

    def missing(self) -> str | None:
        if not self.is_done:
            return "no_done"
        if not self.has_finish_reason:
            return "no_finish_reason"
        return None if self.has_usage else "no_usage"


async def _stream(
    client: httpx.AsyncClient, target: Target, prompt: str, max_tokens: int, watch: _Watch
) -> None:
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"authorization": f"Bearer {target.api_key}"}
    async with client.stream("POST", "chat/completions", json=body, headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            await response.aread()
            watch.error = f"http_{response.status_code}"
            return
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = line[5:].strip()
            if data == "[DONE]":
                watch.is_done = True
                return
            watch.see(json.loads(data))
