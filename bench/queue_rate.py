"""How many requests a second the queue accepts, leases and publishes, on a private Valkey.

    python -m bench.queue_rate --requests 20000 --tenants 200

Prints JSON. No model and no HTTP: the client's `submit`, one engine's `lease` and `publish` (one
output each, which ends it), and the stream's end. Invariant: every request is seen to end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from app.launcher.valkey import ValkeyServer
from engine.messages import (
    EngineRequest,
    FinishReason,
    OutputBatch,
    SamplingParams,
    TokenOutput,
)
from engine.transport.client import QueueClient
from engine.transport.server import EngineStatus, EngineTransport

API_ID = "api-bench"
QUEUE_SECRET = "secret-of-this-bench"
LEASE_SIZE = 64
FREE_PAGES = 1_000_000
PAGE_TOKENS = 16
NUM_CLIENTS = 64


class OneTokenEngine(threading.Thread):
    """Leases in batches, and answers each batch with one token per request."""

    def __init__(self, redis_url: str) -> None:
        super().__init__(daemon=True)
        self.transport = EngineTransport(redis_url, "engine-bench", secret=QUEUE_SECRET)
        self.num_batches = 0
        self.is_stopped = threading.Event()

    def run(self) -> None:
        beat_at = 0.0
        while not self.is_stopped.is_set():
            if time.monotonic() >= beat_at:
                self.transport.heartbeat(EngineStatus())
                beat_at = time.monotonic() + 0.25
            requests = self.transport.lease(FREE_PAGES, PAGE_TOKENS, LEASE_SIZE)
            if requests:
                self._answer(requests)
            else:
                self.transport.wait_control(0.2)
        self.transport.close()

    def _answer(self, requests: list[EngineRequest]) -> None:
        by_api: dict[str, list[TokenOutput]] = defaultdict(list)
        for request in requests:
            output = TokenOutput(
                request_id=request.request_id,
                epoch=request.epoch,
                index=0,
                token_ids=[1],
                num_prompt_tokens=len(request.prompt_token_ids),
                num_generated_tokens=1,
                finish_reason=FinishReason.LENGTH,
            )
            by_api[request.api_id].append(output)
        self.transport.publish(
            {
                api_id: OutputBatch(engine_id=self.transport.engine_id, outputs=outputs)
                for api_id, outputs in by_api.items()
            }
        )
        self.num_batches += 1


def make_request(number: int, num_tenants: int, num_prompt_tokens: int) -> EngineRequest:
    return EngineRequest(
        request_id=f"req_{number}",
        tenant_id=f"ten_{number % num_tenants}",
        api_id=API_ID,
        epoch=0,
        prompt_token_ids=list(range(num_prompt_tokens)),
        sampling=SamplingParams(seed=0, max_tokens=1),
    )


async def measure(
    redis_url: str, num_requests: int, num_tenants: int, num_prompt_tokens: int
) -> dict[str, float]:
    """Requests a second through `submit` alone, and through the whole way and back."""
    client = QueueClient(redis_url, API_ID, secret=QUEUE_SECRET)
    await client.start()
    numbers = iter(range(num_requests))
    streams = []

    async def submit_some() -> None:
        for number in numbers:
            request = make_request(number, num_tenants, num_prompt_tokens)
            streams.append(await client.submit(request, queue_timeout_s=None))

    begin = time.perf_counter()
    await asyncio.gather(*(submit_some() for _ in range(NUM_CLIENTS)))
    accepted_at = time.perf_counter()

    engine = OneTokenEngine(redis_url)
    engine.start()
    for stream in streams:
        outputs = [output async for output in stream]
        assert outputs[-1].finish_reason is FinishReason.LENGTH, outputs
    ended_at = time.perf_counter()
    engine.is_stopped.set()
    await asyncio.to_thread(engine.join)
    await client.close()
    return {
        "requests": num_requests,
        "tenants": num_tenants,
        "prompt_tokens": num_prompt_tokens,
        "accepted_per_s": round(num_requests / (accepted_at - begin), 1),
        "leased_and_published_per_s": round(num_requests / (ended_at - accepted_at), 1),
        "requests_per_entry": round(num_requests / engine.num_batches, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--tenants", type=int, default=100)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        ValkeyServer(Path(folder), password="bench", durable=False) as server,
    ):
        result = asyncio.run(
            measure(server.url, options.requests, options.tenants, options.prompt_tokens)
        )
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
