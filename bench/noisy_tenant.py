"""What one tenant at fifty times its share does to the others' time to first token.

    python -m bench.noisy_tenant --seconds 40 --rounds 5

On one engine's seats: first every tenant asks for its fair share of what is served, then one of
them for fifty times as much, in an open loop; the rounds alternate. An ideal fair queue is asked
the same in virtual time (`bench.ideal_queue`): where all are at their share, seats that one leaves
free shorten another's bursts, and beside a noisy tenant none is left free, so that some of the rise
is nobody's fault. Prints the prediction, then JSON. Invariants: the wait counts from when a request
was due, and the others are asked the same requests, at the same moments, in both; the noisy
tenant's requests are sent by a process of its own, so that sending them does not make others late.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.crowd import crowd_session
from bench.ideal_queue import waits
from bench.load import arrival_offsets
from bench.local_stack import MODEL_ID, LocalStack
from bench.report import percentile_ms
from engine.collector import freeze_startup

NUM_TENANTS = 4
MAX_TOKENS = 12
FILLED = 0.9
"""Of the seats, by all tenants at their fair share."""
EXCESS = 50
START_S = 1.0
"""From the moment at which a turn is laid out to its first request."""
NO_ANSWER = 0
PREDICTED = {
    "of_the_ideal_p99": "<= 1.2 beside the noisy tenant (median of the rounds): to refuse it takes "
    "next to no time from the others",
    "others_unserved": "0: the door turns away who asks for more than its share",
}


@dataclass(frozen=True, slots=True)
class Heard:
    """`late_s`: how long after it was due a request was sent, which is the sender's fault.
    `first_token_s`: from when it was due; None where it got none."""

    late_s: float
    status: int
    first_token_s: float | None


async def ask(client: aiohttp.ClientSession, number: int, due_at: float) -> Heard:
    await asyncio.sleep(due_at - time.perf_counter())
    late_s = time.perf_counter() - due_at
    body = {
        "model": MODEL_ID,
        "prompt": [number % 250, 7, 11, 13] * 4,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    status, found = NO_ANSWER, None
    with suppress(aiohttp.ClientError, TimeoutError):
        async with client.post("/v1/completions", json=body) as response:
            status = response.status
            async for line in response.content:
                if found is None and response.ok and line.startswith(b"data: {"):
                    found = time.perf_counter() - due_at
    return Heard(late_s, status, found)


async def send_all(
    url: str, tenant_keys: Sequence[str], moments: Sequence[Sequence[float]]
) -> list[Heard]:
    """Each tenant's requests, at its moments (on time.perf_counter's clock)."""
    calls = []
    sessions = [crowd_session(url, key) for key in tenant_keys]
    for client, due in zip(sessions, moments, strict=True):
        calls += [ask(client, number, due_at) for number, due_at in enumerate(due)]
    try:
        return await asyncio.gather(*calls)
    finally:
        for client in sessions:
            await client.close()


def send(url: str, tenant_keys: Sequence[str], moments: Sequence[Sequence[float]]) -> list[Heard]:
    """`send_all`, by this process."""
    freeze_startup()  # a pass of the collector over it would count as somebody's wait
    return asyncio.run(send_all(url, tenant_keys, moments))


def offsets_of(rates: Sequence[float], seconds: float) -> list[list[float]]:
    """When each tenant asks."""
    return [arrival_offsets(rate, int(rate * seconds), seed=i) for i, rate in enumerate(rates)]


def ideal_p99_ms(rates: Sequence[float], seconds: float, num_seats: int, step_s: float) -> float:
    """The others' p99 to a first token in an ideal queue."""
    service_s = MAX_TOKENS * step_s
    _, *others = waits(offsets_of(rates, seconds), num_seats=num_seats, service_s=service_s)
    return percentile_ms([step_s + wait for each in others for wait in each], 99) or 0.0


def turn(
    senders: Executor, url: str, tenant_keys: Sequence[str], rates: Sequence[float], seconds: float
) -> tuple[list[Heard], list[Heard]]:
    """What the first tenant heard, and what the others did."""
    begin = time.perf_counter() + START_S
    moments = [[begin + offset for offset in each] for each in offsets_of(rates, seconds)]
    first = senders.submit(send, url, tenant_keys[:1], moments[:1])
    others = senders.submit(send, url, tenant_keys[1:], moments[1:])
    return first.result(), others.result()


def measure(
    stack: LocalStack,
    tenant_keys: Sequence[str],
    options: argparse.Namespace,
) -> dict[str, Any]:
    seconds, step_s = options.seconds, options.step_ms / 1000
    # A request takes a step for its prompt, which draws the first token too, and one for each more.
    share = FILLED * options.seats / (MAX_TOKENS * step_s) / NUM_TENANTS
    quiet_rates = [share] * NUM_TENANTS
    noisy_rates = [EXCESS * share, *quiet_rates[1:]]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as senders:
        turn(senders, stack.url, tenant_keys, quiet_rates, 2.0)  # to warm up
        found = []
        for _ in range(options.rounds):
            _, quiet = turn(senders, stack.url, tenant_keys, quiet_rates, seconds)
            noisy, disturbed = turn(senders, stack.url, tenant_keys, noisy_rates, seconds)
            found.append(summary(quiet, disturbed, noisy))
    ideal = [
        ideal_p99_ms(rates, seconds, options.seats, step_s) for rates in (quiet_rates, noisy_rates)
    ]
    measured = [statistics.median(each["p99_ms"][i] for each in found) for i in (0, 1)]
    return {
        "share_per_s": round(share, 2),
        "rounds": found,
        "p99_ttft_ratio": statistics.median(each["ratio"] for each in found),
        "ideal_p99_ms": ideal,
        "ideal_ratio": round(ideal[1] / ideal[0], 2),
        "of_the_ideal_p99": [round(a / b, 2) for a, b in zip(measured, ideal, strict=True)],
    }


def summary(
    quiet: Sequence[Heard], disturbed: Sequence[Heard], noisy: Sequence[Heard]
) -> dict[str, Any]:
    """The others' waits without and with the noisy tenant, and what that tenant heard."""
    waits = [
        [each.first_token_s for each in heard if each.first_token_s is not None]
        for heard in (quiet, disturbed)
    ]
    p50, p99 = ([percentile_ms(each, percent) or 0.0 for each in waits] for percent in (50, 99))
    everybody = [*quiet, *disturbed]
    return {
        "p50_ms": p50,
        "p99_ms": p99,
        "ratio": round(p99[1] / p99[0], 2),
        "others_unserved": sum(each.first_token_s is None for each in everybody),
        "others_statuses": _statuses(everybody),
        "noisy_statuses": _statuses(noisy),
        "sent_late_p99_ms": percentile_ms([each.late_s for each in everybody], 99),
    }


def _statuses(heard: Sequence[Heard]) -> dict[str, int]:
    return {str(k): n for k, n in sorted(Counter(each.status for each in heard).items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seats", type=int, default=4, help="requests that run at a time")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument(
        "--dependency-timeout-s", type=float, help="more than the API's own, on a busy machine"
    )
    options = parser.parse_args()
    sys.stdout.write(json.dumps({"predicted": PREDICTED}, indent=2) + "\n")
    engine = ["--step-ms", str(options.step_ms), "--max-num-seqs", str(options.seats)]
    settings = {}
    if options.dependency_timeout_s is not None:
        settings["TENFOLD_DEPENDENCY_TIMEOUT_S"] = str(options.dependency_timeout_s)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalStack(Path(folder), engine=engine, settings=settings) as stack,
    ):
        tenant_keys = [stack.new_tenant(f"tenant-{i}") for i in range(NUM_TENANTS)]
        result = measure(stack, tenant_keys, options)
    sys.stdout.write(json.dumps({"measured": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
