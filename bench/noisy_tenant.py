"""What one tenant at fifty times its share does to the others' time to first token.

    python -m bench.noisy_tenant --seconds 40 --rounds 5

On one engine's seats: first every tenant asks for its fair share of what is served, then one of
them for fifty times as much, in an open loop; the rounds alternate. Prints the prediction, then
JSON. Invariant: the wait counts from when a request was due, and the others are asked the same
requests, at the same moments, in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from bench.load import arrival_offsets
from bench.local_stack import MODEL_ID, LocalStack
from bench.report import percentile_ms

NUM_TENANTS = 4
MAX_TOKENS = 12
FILLED = 0.9
"""Of the seats, by all tenants at their fair share."""
EXCESS = 50
PREDICTED = {
    "p99_ttft_ratio": "<= 1.5 (median of the rounds): a quiet tenant's request is the next to be "
    "leased, and waits for a seat as often as the noisy tenant has left none",
    "others_unserved": "0: the door turns away who asks for more than its share",
}


async def first_token_s(client: httpx.AsyncClient, number: int, due_at: float) -> float | None:
    """From when the request was due; None where it was refused, or its connection broke."""
    await asyncio.sleep(due_at - time.perf_counter())
    body = {
        "model": MODEL_ID,
        "prompt": [number % 250, 7, 11, 13] * 4,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    found = None
    with suppress(httpx.TransportError):
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if found is None and response.is_success and line.startswith("data: {"):
                    found = time.perf_counter() - due_at
    return found


async def turn(
    clients: Sequence[httpx.AsyncClient], share: float, seconds: float, *, is_noisy: bool
) -> tuple[list[float], int]:
    """The other tenants' waits, and how many of their requests got no token."""
    begin = time.perf_counter() + 0.1
    calls = []
    for tenant, client in enumerate(clients):
        rate = share * (EXCESS if is_noisy and tenant == 0 else 1)
        offsets = arrival_offsets(rate, int(rate * seconds), seed=tenant)
        calls.append(
            asyncio.gather(
                *(first_token_s(client, i, begin + offset) for i, offset in enumerate(offsets))
            )
        )
    _, *others = await asyncio.gather(*calls)
    heard = [wait_s for waits in others for wait_s in waits]
    return [each for each in heard if each is not None], heard.count(None)


async def measure(
    stack: LocalStack,
    tenant_keys: Sequence[str],
    served_per_s: float,
    seconds: float,
    rounds: int,
) -> dict[str, Any]:
    clients = [
        httpx.AsyncClient(
            base_url=stack.url,
            headers={"x-api-key": key},
            timeout=120,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
        for key in tenant_keys
    ]
    share = FILLED * served_per_s / NUM_TENANTS
    found: list[dict[str, Any]] = []
    for _ in range(rounds):
        quiet, unserved_quiet = await turn(clients, share, seconds, is_noisy=False)
        noisy, unserved_noisy = await turn(clients, share, seconds, is_noisy=True)
        p50, p99 = (
            [percentile_ms(waits, percent) or 0.0 for waits in (quiet, noisy)]
            for percent in (50, 99)
        )
        found.append(
            {
                "p50_ms": p50,
                "p99_ms": p99,
                "ratio": round(p99[1] / p99[0], 2),
                "others_unserved": unserved_quiet + unserved_noisy,
            }
        )
    for client in clients:
        await client.aclose()
    return {
        "share_per_s": round(share, 2),
        "rounds": found,
        "p99_ttft_ratio": statistics.median(each["ratio"] for each in found),
    }


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
    # A request takes a step for its prompt, which draws the first token too, and one for each more.
    served_per_s = options.seats / (MAX_TOKENS * options.step_ms / 1000)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalStack(Path(folder), engine=engine, settings=settings) as stack,
    ):
        tenant_keys = [stack.new_tenant(f"tenant-{i}") for i in range(NUM_TENANTS)]
        result = asyncio.run(
            measure(stack, tenant_keys, served_per_s, options.seconds, options.rounds)
        )
    sys.stdout.write(json.dumps({"measured": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
