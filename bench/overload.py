"""What a tenth of the demand that can be served is worth, while all of it comes to the door.

    python -m bench.overload --seconds 60

First the peak: as many clients as keep the engine full. Then ten times as many requests a second
as were served then, in an open loop (`bench/load.py`), so that a slow answer delays no other
request, and the wait counts from when a request was due. Prints the predictions, then JSON.
Invariant: every request that was due is in exactly one column of the result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import redis.asyncio

from bench.crowd import crowd_session
from bench.load import arrival_offsets
from bench.local_stack import MODEL_ID, LocalStack
from bench.report import percentile_ms
from engine.collector import freeze_startup
from engine.transport import keys

NUM_TENANTS = 4
MAX_TOKENS = 12
WAIT_S = 2.0
"""The longest wait that the door lets anybody expect."""
EXCESS = 10
SETTLE_S = 3.0
"""At the start of each phase: the queue fills, and who fills it is accepted at once. Goodput and
refusals are counted after that, and those refusals apart."""
PREDICTED = {
    "goodput_share_of_peak": ">= 0.95: what is refused costs the engine nothing",
    "refusal_p99_ms": "< 50: no commit and no queue, one question to Redis at most",
    "onset_refusal_p99_ms": "some hundred: behind those who are accepted to fill the queue",
    "statuses": "200, 429 and 503 only, each refusal with whole seconds of retry-after",
    "queue_empty_s": f"<= {WAIT_S:g}: nobody is let in who would wait longer",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """`wait_s`: from when the request was due, `due_at`, to the end of its answer."""

    status: int
    due_at: float
    wait_s: float
    ended_at: float
    retry_after: str | None


async def ask(client: aiohttp.ClientSession, number: int, due_at: float) -> Answered:
    body = {
        "model": MODEL_ID,
        "prompt": [number % 250, 7, 11, 13] * 4,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    try:
        async with client.post("/v1/completions", json=body) as response:
            await response.read()
            status, retry_after = response.status, response.headers.get("retry-after")
    except (aiohttp.ClientError, TimeoutError):
        status, retry_after = 0, None
    now = time.perf_counter()
    return Answered(status, due_at, now - due_at, now, retry_after)


async def peak(clients: Sequence[aiohttp.ClientSession], num_seats: int, seconds: float) -> float:
    """Answers a second, of as many clients as keep the engine full and the queue short.

    Raises RuntimeError where there are none.
    """
    begin = time.perf_counter()
    ends: list[float] = []

    async def one(number: int) -> None:
        while (now := time.perf_counter()) < begin + seconds:
            answered = await ask(clients[number % NUM_TENANTS], number, now)
            if answered.status == 200:
                ends.append(answered.ended_at)

    await asyncio.gather(*(one(number) for number in range(2 * num_seats)))
    found = rate_between(ends, begin + SETTLE_S, begin + seconds)
    if found == 0:
        raise RuntimeError("nothing was served: is this machine busy with something else?")
    return found


async def overload(
    clients: Sequence[aiohttp.ClientSession], rate: float, seconds: float
) -> tuple[float, list[Answered]]:
    """Answers a second, and all that was heard."""
    offsets = arrival_offsets(rate, int(rate * seconds), seed=1)
    begin = time.perf_counter() + 0.1

    async def one(number: int, due_at: float) -> Answered:
        await asyncio.sleep(due_at - time.perf_counter())
        return await ask(clients[number % NUM_TENANTS], number, due_at)

    answers = await asyncio.gather(
        *(one(number, begin + offset) for number, offset in enumerate(offsets))
    )
    ends = [each.ended_at for each in answers if each.status == 200]
    return rate_between(ends, begin + SETTLE_S, begin + offsets[-1]), answers


def rate_between(moments: Sequence[float], begin: float, end: float) -> float:
    return sum(begin <= each < end for each in moments) / (end - begin)


def summary(answers: Sequence[Answered]) -> dict[str, Any]:
    refused = [each for each in answers if each.status in (429, 503)]
    settled_at = answers[0].due_at + SETTLE_S
    onset = [each.wait_s for each in refused if each.due_at < settled_at]
    waits = [each.wait_s for each in refused if each.due_at >= settled_at]
    served = [each.wait_s for each in answers if each.status == 200]
    return {
        "requests": len(answers),
        "statuses": {str(k): n for k, n in sorted(Counter(a.status for a in answers).items())},
        "refusals_without_retry_after": sum(not (a.retry_after or "").isdigit() for a in refused),
        "refusal_p50_ms": percentile_ms(waits, 50),
        "refusal_p99_ms": percentile_ms(waits, 99),
        "onset_refusal_p99_ms": percentile_ms(onset, 99),
        "answer_p50_ms": percentile_ms(served, 50),
        "answer_p100_ms": percentile_ms(served, 100),
    }


async def queue_is_empty(redis_url: str) -> float:
    """Seconds from now until nothing waits."""
    begin = time.perf_counter()
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as server:
        while await server.exists(f"{keys.PREFIX}num_queued"):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.02)
    return time.perf_counter() - begin


async def measure(
    stack: LocalStack, tenant_keys: Sequence[str], num_seats: int, seconds: float
) -> dict[str, Any]:
    clients = [crowd_session(stack.url, key) for key in tenant_keys]
    peak_per_s = await peak(clients, num_seats, min(seconds, 15.0))
    loading = asyncio.create_task(overload(clients, EXCESS * peak_per_s, seconds))
    await asyncio.sleep(0.1 + seconds)
    empty_s = await queue_is_empty(stack.redis_url)
    goodput, answers = await loading
    for client in clients:
        await client.close()
    return {
        "peak_per_s": round(peak_per_s, 2),
        "offered_per_s": round(EXCESS * peak_per_s, 1),
        "goodput_per_s": round(goodput, 2),
        "goodput_share_of_peak": round(goodput / peak_per_s, 3),
        **summary(answers),
        "queue_empty_s": round(empty_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seats", type=int, default=4, help="requests that run at a time")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument(
        "--dependency-timeout-s", type=float, help="more than the API's own, on a busy machine"
    )
    options = parser.parse_args()
    sys.stdout.write(json.dumps({"predicted": PREDICTED}, indent=2) + "\n")
    engine = ["--step-ms", str(options.step_ms), "--max-num-seqs", str(options.seats)]
    settings = {"TENFOLD_MAX_QUEUE_WAIT_S": str(WAIT_S)}
    if options.dependency_timeout_s is not None:
        settings["TENFOLD_DEPENDENCY_TIMEOUT_S"] = str(options.dependency_timeout_s)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalStack(Path(folder), engine=engine, settings=settings) as stack,
    ):
        tenant_keys = [stack.new_tenant(f"tenant-{i}") for i in range(NUM_TENANTS)]
        freeze_startup()  # a pass over it would count as somebody's wait
        result = asyncio.run(measure(stack, tenant_keys, options.seats, options.seconds))
    sys.stdout.write(json.dumps({"measured": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
