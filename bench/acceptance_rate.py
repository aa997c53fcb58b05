"""How many requests a second are accepted, with and without group commit, on a private Postgres.

    python -m bench.acceptance_rate --requests 4000 --clients 64

Prints JSON: for each way the rate that was predicted, from the time of a lone commit, and the rate
that was measured. No HTTP and no queue: `Acceptance.accept` from closed-loop clients, with fsync.
Invariant: every request that was accepted is a row in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from sqlalchemy import text

from app.db import Database
from app.launcher.postgres import PostgresServer
from app.migrate import migrate
from app.requests.acceptance import LINGER_S, MAX_ROWS, Acceptance
from app.requests.acceptance_repository import NewRequest

NUM_LONE = 100
PATIENCE_S = 60.0

_numbers = count()


def new_request() -> NewRequest:
    number = next(_numbers)
    return NewRequest(
        request_id=f"{number:032x}-0",
        tenant_id=f"ten_{number % 100}",
        accepted_at=datetime.now(UTC),
        api_id="api-bench",
        key_id="key_bench",
        model="support-bot",
        adapter_version_id="ver_bench",
        adapter_digest=f"sha256:{'0' * 64}",
        num_prompt_tokens=128,
        max_tokens=256,
    )


async def lone_commit_s(url: str) -> float:
    """The median time of one acceptance with nobody else there, without linger."""
    acceptance = Acceptance(url, linger_s=0.0, timeout_s=PATIENCE_S)
    await acceptance.start()
    seconds = []
    for _ in range(NUM_LONE):
        begin = time.perf_counter()
        await acceptance.accept([new_request()])
        seconds.append(time.perf_counter() - begin)
    await acceptance.close()
    return statistics.median(seconds)


async def measure(
    url: str, num_requests: int, num_clients: int, *, linger_s: float, max_rows: int
) -> dict[str, float]:
    acceptance = Acceptance(url, linger_s=linger_s, max_rows=max_rows, timeout_s=PATIENCE_S)
    await acceptance.start()
    turns = iter(range(num_requests))
    seconds: list[float] = []

    async def client() -> None:
        for _ in turns:
            begin = time.perf_counter()
            await acceptance.accept([new_request()])
            seconds.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(num_clients)))
    elapsed = time.perf_counter() - begin
    await acceptance.close()
    return {
        "accepted_per_s": round(num_requests / elapsed, 1),
        "requests_per_commit": round(num_requests / acceptance.num_commits, 1),
        "p50_ms": round(1000 * statistics.median(seconds), 2),
        "p99_ms": round(1000 * statistics.quantiles(seconds, n=100)[-1], 2),
    }


async def compare(url: str, num_requests: int, num_clients: int) -> dict[str, object]:
    commit_s = await lone_commit_s(url)
    # A commit at a time without grouping; with it, all clients in each.
    ways = {
        "commit_each": (0.0, 1, 1 / commit_s),
        "group_commit": (LINGER_S, MAX_ROWS, num_clients / (commit_s + LINGER_S)),
    }
    results: dict[str, object] = {
        "clients": num_clients,
        "lone_commit_ms": round(1000 * commit_s, 2),
    }
    for name, (linger_s, max_rows, predicted) in ways.items():
        num = num_requests if max_rows > 1 else num_requests // 4
        measured = await measure(url, num, num_clients, linger_s=linger_s, max_rows=max_rows)
        results[name] = {"predicted_per_s": round(predicted, 1), **measured}
    return results


async def num_rows(owner_url: str) -> int:
    owner = Database(owner_url, pool_size=1)
    async with owner.session() as session:
        number = await session.scalar(text("SELECT count(*) FROM requests"))
    await owner.close()
    return int(number or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--clients", type=int, default=64)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer(Path(folder) / "postgres", durable=True) as server,
    ):
        migrate(server.admin_url)
        result = asyncio.run(compare(server.app_url(), options.requests, options.clients))
        accepted = next(_numbers)
        assert asyncio.run(num_rows(server.admin_url)) == accepted, "a request was lost"
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
