"""A whole installation, all of whose processes crash one after the other under load.

Knows nothing of verdicts. Invariant: one fault at a time: the next process is killed when what the
last one carried has gone on, or has ended.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr
from sqlalchemy import make_url

from app.launcher.postgres import APP_DATABASE, PostgresServer
from app.migrate import migrate
from app.settings import Settings
from tests.app.requests.conftest import Rows
from tests.builders.operator import ADMIN_KEY
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.receiver import Receiver
from tests.builders.relay import Relay
from tests.builders.server import serving
from tests.builders.waiting import eventually
from tests.faults.clients import Clients
from tests.faults.kills import all_ended
from tests.faults.stack import Stack

DECK = {"engine": 4, "api": 2, "worker": 3, "redis": 2, "postgres": 1}
"""What crashes, shuffled, before it begins anew."""
TOGETHER = 2
"""Engines or API processes that crash at once: a request is with one of them."""
STEP_MS = 10
NUM_ENGINES = 6
NUM_APIS = 4


@dataclass(frozen=True, slots=True)
class Installation:
    stack: Stack
    postgres: PostgresServer
    receiver: Receiver
    owner_url: str
    """Of the registry's owner, wherever the server listens now."""


@asynccontextmanager
async def installation(model: Path, folder: Path) -> AsyncIterator[Installation]:
    """With a Postgres that keeps what it committed, and a receiver of usage events."""
    receiver, postgres = Receiver(), PostgresServer(folder / "postgres", durable=True)
    await asyncio.to_thread(postgres.start)
    try:
        await asyncio.to_thread(migrate, postgres.admin_url)
        async with Relay(lambda: postgres.port) as relay, serving(receiver.app) as url:
            settings = _settings(_relayed(postgres.app_url(), relay), model, folder)
            stack = Stack(
                settings,
                folder / "stack",
                ("tests.stub_engine", "--model", str(model), "--step-ms", str(STEP_MS)),
                num_engines=NUM_ENGINES,
                num_apis=NUM_APIS,
                worker_options={"TENFOLD_USAGE_EXPORT_URL": f"{url}/events"},
            )
            await asyncio.to_thread(stack.__enter__)
            try:
                owner_url = _relayed(
                    postgres.url_of("postgres", postgres.home.superuser_password, APP_DATABASE),
                    relay,
                )
                yield Installation(stack, postgres, receiver, owner_url)
            finally:
                await asyncio.to_thread(stack.__exit__, None, None, None)
    finally:
        await asyncio.to_thread(postgres.stop)


def _settings(database_url: str, model: Path, folder: Path) -> Settings:
    return Settings(
        database_url=database_url,
        redis_url="redis://none",
        queue_secret=SecretStr(QUEUE_SECRET),
        model=model,
        adapter_store=str(folder / "store"),
        data_dir=folder / "data",
        key_pepper=SecretStr("pepper-of-the-tests"),
        admin_key=SecretStr(ADMIN_KEY),
    )


def _relayed(url: str, relay: Relay) -> str:
    return make_url(url).set(port=relay.port).render_as_string(hide_password=False)


class Crashes:
    """`crash` again and again, of whichever process; `rows` is the ledger, to see what ended."""

    def __init__(self, installed: Installation, rows: Rows, rng: random.Random) -> None:
        self._stack = installed.stack
        self._postgres = installed.postgres
        self._rows = rows
        self._rng = rng
        self._deck: list[str] = []
        self.counts = dict.fromkeys(DECK, 0)

    @property
    def num(self) -> int:
        return sum(self.counts.values())

    async def crash(self, clients: Clients) -> None:
        """One process, or two of a kind that has several."""
        await asyncio.sleep(self._rng.uniform(0.05, 0.3))
        if not self._deck:
            self._deck = [kind for kind, num in DECK.items() for _ in range(num)]
            self._rng.shuffle(self._deck)
        kind = self._deck.pop()
        kill: Callable[[Clients], Awaitable[int]] = getattr(self, f"_kill_{kind}")
        self.counts[kind] += await kill(clients)

    async def _kill_engine(self, clients: Clients) -> int:
        victims = await asyncio.to_thread(self._stack.busiest, TOGETHER)
        for engine in victims:
            await asyncio.to_thread(engine.kill)
        in_flight = set(clients.in_flight)
        for engine in victims:
            engine.launch()
        await all_ended(clients, in_flight)
        await asyncio.to_thread(self._stack.wait_for, victims)
        return len(victims)

    async def _kill_api(self, clients: Clients) -> int:
        victims = self._rng.sample(self._stack.apis, TOGETHER)
        in_flight = set(clients.in_flight)
        for api in victims:
            await asyncio.to_thread(api.kill)
        cut = await self._open()
        await asyncio.gather(*(asyncio.to_thread(api.start) for api in victims))
        await all_ended(clients, in_flight)
        await eventually(lambda: self._have_ended(cut), timeout_s=30)
        return len(victims)

    async def _kill_worker(self, clients: Clients) -> int:
        await asyncio.to_thread(self._stack.worker.kill)
        self._stack.worker.launch()
        return 1

    async def _kill_redis(self, clients: Clients) -> int:
        """It comes back empty."""
        in_flight = set(clients.in_flight)
        await asyncio.to_thread(self._stack.kill_valkey, self._rng.uniform(0.0, 0.3))
        await asyncio.to_thread(self._stack.wait_for, self._stack.engines)
        await all_ended(clients, in_flight)
        return 1

    async def _kill_postgres(self, clients: Clients) -> int:
        """With all of its backends; it comes back with what was committed."""
        in_flight = set(clients.in_flight)
        child = self._postgres.child
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)
        await asyncio.to_thread(self._postgres.stop)
        await asyncio.to_thread(self._postgres.start)
        await all_ended(clients, in_flight)
        return 1

    async def _open(self) -> set[str]:
        return {row["request_id"] for row in await self._rows.requests() if _is_open(row)}

    async def _have_ended(self, requests: set[str]) -> bool:
        return requests.isdisjoint(await self._open())


def _is_open(row: dict[str, object]) -> bool:
    return row["state"] == "accepted"
