"""Limits hold over API processes and over a Redis that loses its data: exactly so many pass.

Each round leaves room for a known number of requests, and fires more of them at two processes at
once. Fewer admitted is a refusal that should not have been; more is money lost.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from pydantic import SecretStr
from sqlalchemy import text

from app.db import Database
from app.launcher.postgres import PostgresServer
from app.settings import Settings
from engine.transport import keys
from tests.billing.conftest import BILLING
from tests.builders.operator import ADMIN_KEY, OPERATOR
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually, until
from tests.faults.campaign import amount
from tests.faults.stack import Stack
from tests.fixtures.servers import TestDatabase, new_database

PATH = "/v1/completions"
SEED = 17
NUM_FLUSHES = {"soak": 100}.get(amount(), 20)
NUM_ASKED = 12
NUM_LONG = 3
SHORT, LONG = 6, 100  # generated tokens
STEP_MS = "10"
REBUILT_WITHIN_S = 5.0


class Shop:
    """One tenant of a whole installation, and what it has spent by either count."""

    def __init__(self, stack: Stack, owner_url: str) -> None:
        self.stack = stack
        self.owner = Database(owner_url, pool_size=1)
        self.redis = redis.Redis.from_url(stack.valkey.url, protocol=2, decode_responses=True)
        self.admin = httpx.AsyncClient(
            base_url=f"{stack.apis[0].admin_url}/admin/v1", headers=OPERATOR, timeout=30
        )
        self.tenant_id = ""
        self.http: list[httpx.AsyncClient] = []

    async def open(self) -> None:
        found = await self.admin.get("/tenants/acme")
        if found.status_code == 404:
            found = await self.admin.post("/tenants", json={"slug": "acme"})
        self.tenant_id = found.json()["id"]
        key = (await self.admin.post("/tenants/acme/keys", json={})).raise_for_status().json()
        headers = {"x-api-key": key["secret"]}
        self.http = [
            httpx.AsyncClient(base_url=url, headers=headers, timeout=60)
            for url in self.stack.urls()
        ]

    async def close(self) -> None:
        for client in (*self.http, self.admin):
            await client.aclose()
        self.redis.close()
        await self.owner.close()

    async def limit(self, **limits: int | None) -> None:
        body = {"limits": {"concurrency": None, "queue_depth": None, **limits}}
        (await self.admin.put("/tenants/acme/limits", json=body)).raise_for_status()

    async def ask(self, number: int, prompt: Sequence[int], max_tokens: int) -> httpx.Response:
        body = {
            "model": MODEL_ID,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        return await self.http[number % len(self.http)].post(PATH, json=body)

    async def find_prompt(self, max_tokens: int, rng: random.Random) -> list[int]:
        """One whose answer is as long as it may be, so that nothing reserved comes back."""
        while True:
            prompt = [rng.randrange(256) for _ in range(4)]
            answer = (await self.ask(0, prompt, max_tokens)).raise_for_status().json()
            if answer["choices"][0]["finish_reason"] == "length":
                return prompt

    def enforced(self) -> int:
        """Tokens that limits count, by Redis."""
        month = f"m{time.strftime('%Y%m', time.gmtime())}"
        subject = f"tenant:{self.tenant_id}"
        return sum(
            int(self.redis.hget(f"{keys.PREFIX}{what}:{subject}", month) or 0)
            for what in ("spent", "reserved")
        )

    def num_queued(self) -> int:
        return int(self.redis.zcard(keys.queue(self.tenant_id)))

    async def in_the_ledger(self) -> int:
        """Tokens that were used, and those that open requests may still use, by Postgres."""
        async with self.owner.session() as session:
            query = text(
                "SELECT (SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM usage_ledger)"
                " + (SELECT coalesce(sum((decision ->> 'tokens')::bigint), 0) FROM requests"
                " WHERE state = 'accepted')"
            )
            return int(await session.scalar(query))

    async def agrees(self) -> bool:
        return self.enforced() == await self.in_the_ledger()

    async def is_quiet(self) -> bool:
        async with self.owner.session() as session:
            query = text("SELECT count(*) FROM requests WHERE state = 'accepted'")
            is_ended = await session.scalar(query) == 0
        return is_ended and await self.agrees()


@asynccontextmanager
async def opened(stack: Stack, database: TestDatabase) -> AsyncIterator[Shop]:
    shop = Shop(stack, database.owner_url)
    try:
        await shop.open()
        yield shop
    finally:
        await shop.close()


@pytest.fixture(scope="module")
def database_of_limits(postgres: PostgresServer, registry_template: str) -> Iterator[TestDatabase]:
    yield from new_database(postgres, f"TEMPLATE {registry_template} STRATEGY wal_log")


@pytest.fixture(scope="module")
def stack(
    database_of_limits: TestDatabase,
    tiny_base_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """Two API processes, one stub engine, one worker."""
    folder = tmp_path_factory.mktemp("limits")
    settings = Settings(
        database_url=database_of_limits.app_url,
        redis_url="redis://none",
        queue_secret=SecretStr(QUEUE_SECRET),
        model=tiny_base_folder,
        adapter_store=str(folder / "store"),
        data_dir=folder / "data",
        key_pepper=SecretStr("pepper-of-the-tests"),
        admin_key=SecretStr(ADMIN_KEY),
    )
    command = ("tests.stub_engine", "--step-ms", STEP_MS, "--model", str(tiny_base_folder))
    with Stack(settings, folder / "stack", command, num_engines=1, num_apis=2) as running:
        yield running


@pytest.mark.timeout(300)
async def test_through_losses_of_redis_exactly_as_many_pass_as_the_budget_fits(
    stack: Stack, database_of_limits: TestDatabase, record_property: Any
) -> None:
    rng = random.Random(SEED)
    admitted_over, refused_under, slowest_s = 0, 0, 0.0
    async with opened(stack, database_of_limits) as shop:
        short = await shop.find_prompt(SHORT, rng)
        long = await shop.find_prompt(LONG, rng)
        await eventually(shop.is_quiet, timeout_s=30)
        for number in range(NUM_FLUSHES):
            running = await begin(shop, long)
            num_fit = rng.randint(0, NUM_ASKED - 1)
            room = num_fit * (len(short) + SHORT) + rng.randrange(len(short) + SHORT)
            await shop.limit(tokens_per_month=await shop.in_the_ledger() + room)
            shop.redis.flushall()
            lost_at = time.monotonic()
            answers = await asyncio.gather(
                *(shop.ask(i, short, SHORT) for i in range(number, number + NUM_ASKED))
            )
            statuses = statuses_of(answers)
            assert statuses.keys() <= {200, 429}, [each.text for each in answers]
            admitted_over += max(0, statuses.get(200, 0) - num_fit)
            refused_under += max(0, num_fit - statuses.get(200, 0))
            await eventually(shop.agrees, timeout_s=REBUILT_WITHIN_S)
            slowest_s = max(slowest_s, time.monotonic() - lost_at)
            assert {each.status_code for each in await asyncio.gather(*running)} == {200}
            await shop.limit(tokens_per_month=None)
            await eventually(shop.is_quiet, timeout_s=30)
    told = {
        "losses of redis": NUM_FLUSHES,
        "admitted over limit": admitted_over,
        "refused within it": refused_under,
        "ms of the slowest rebuild": int(slowest_s * 1000),
    }
    record_property(BILLING, json.dumps(told))
    assert (admitted_over, refused_under) == (0, 0)
    assert slowest_s < REBUILT_WITHIN_S


async def begin(shop: Shop, prompt: Sequence[int]) -> list[asyncio.Task[httpx.Response]]:
    """Requests that are being answered while the rest happens."""
    before = await shop.in_the_ledger()
    running = [asyncio.create_task(shop.ask(i, prompt, LONG)) for i in range(NUM_LONG)]

    async def all_accepted() -> bool:
        return await shop.in_the_ledger() == before + NUM_LONG * (len(prompt) + LONG)

    await eventually(all_accepted, timeout_s=10)
    return running


def statuses_of(answers: Sequence[httpx.Response]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for each in answers:
        found[each.status_code] = found.get(each.status_code, 0) + 1
    return found


@pytest.mark.timeout(120)
async def test_of_twenty_at_once_a_budget_of_five_admits_five_on_two_processes(
    stack: Stack, database_of_limits: TestDatabase, record_property: Any
) -> None:
    over = 0
    async with opened(stack, database_of_limits) as shop:
        prompt = await shop.find_prompt(SHORT, random.Random(SEED + 1))
        await eventually(shop.is_quiet, timeout_s=30)
        room = 5 * (len(prompt) + SHORT) + len(prompt)
        await shop.limit(tokens_per_month=await shop.in_the_ledger() + room)
        answers = await asyncio.gather(*(shop.ask(i, prompt, SHORT) for i in range(20)))
        statuses = statuses_of(answers)
        over = max(0, statuses.get(200, 0) - 5)
        record_property(BILLING, json.dumps({"admitted over limit": over}))
        assert statuses == {200: 5, 429: 15}
        await eventually(shop.is_quiet, timeout_s=30)
        last = await shop.ask(0, prompt, SHORT)
        error = last.json()["error"]
        assert (last.status_code, error["code"]) == (429, "insufficient_quota")
        assert last.headers["x-should-retry"] == "false" and "retry-after" not in last.headers
        assert error["reset_at"]
        await shop.limit(tokens_per_month=None)  # the control: it was the budget
        assert (await shop.ask(1, prompt, SHORT)).status_code == 200


@pytest.mark.timeout(120)
async def test_of_twenty_at_once_a_queue_of_five_takes_five_on_two_processes(
    stack: Stack, database_of_limits: TestDatabase, record_property: Any
) -> None:
    """While no engine takes anything: the twenty come before the first of them is in the queue."""
    async with opened(stack, database_of_limits) as shop:
        prompt = await shop.find_prompt(SHORT, random.Random(SEED + 2))
        await eventually(shop.is_quiet, timeout_s=30)
        engine = stack.engines[0].process
        engine.send_signal(signal.SIGSTOP)
        try:
            heartbeat = keys.engine(stack.engines[0].engine_id)
            await until(lambda: not shop.redis.exists(heartbeat), timeout_s=10)
            await shop.limit(queue_depth=5)
            asked = [asyncio.create_task(shop.ask(i, prompt, SHORT)) for i in range(20)]
            await until(lambda: sum(each.done() for each in asked) >= 15, timeout_s=30)
            await until(lambda: shop.num_queued() == 5)
            refused = [each.result() for each in asked if each.done()]
            assert {each.json()["error"]["code"] for each in refused} == {"queue_full"}
            await shop.limit(queue_depth=None)  # the control: it was the queue's depth
            more = [asyncio.create_task(shop.ask(i, prompt, SHORT)) for i in range(20)]
            await until(lambda: shop.num_queued() == 25, timeout_s=30)
        finally:
            engine.send_signal(signal.SIGCONT)
        statuses = statuses_of(await asyncio.gather(*asked))
        over = max(0, statuses.get(200, 0) - 5)
        record_property(BILLING, json.dumps({"admitted over limit": over}))
        assert statuses == {200: 5, 429: 15}
        assert statuses_of(await asyncio.gather(*more)) == {200: 20}
