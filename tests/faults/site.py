"""An API process, an engine and the ledger's worker, on links to Redis and Postgres that fail when
they are told to.

Knows nothing of faults. Invariant: what `through` lets pass has lost nothing: the stream that ran
is whole, and every request that was accepted has ended, and is in the ledger once.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from redis.asyncio import Redis

from app.adapters.jobs import JobRunner
from app.api import create_admin_app, create_app
from app.context import AppContext, open_context
from app.db import Database
from app.requests.jobs import LedgerJobs
from app.settings import Settings
from app.worker import LEDGER_TIMEOUT_S
from engine.collector import freeze_startup
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.connection import open_async_redis
from tests.app.requests.conftest import Rows
from tests.builders.operator import Operator, Tenant
from tests.builders.own_time import own_time_s
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.relay import Relay
from tests.builders.server import serving
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID
from tests.builders.usage import make_record
from tests.builders.waiting import eventually, until
from tests.faults.campaign import COUNTS, VERDICT, Recorder

PATH = "/v1/completions"
USED = "req_used_amid_it"
NUM_TOKENS = 150
STEP_S = 0.02
NUM_REFUSALS = 6
PROMISED_S = 0.25
NO_HANG_S = 2 * PROMISED_S
"""By a clock that a busy machine does not move. Threads and servers that wait are waited for."""
WHOLE_AGAIN_S = 5.0


Act = Callable[[], object]
"""Or what is to be awaited."""


def tell(record_property: Recorder, summary: str) -> None:
    """Have a figure printed at the end of the run, among the verdicts."""
    record_property(VERDICT, json.dumps({"summary": summary, **dict.fromkeys(COUNTS, 0)}))


@dataclass
class Outage:
    """How new work fared. Seconds; of each refusal in order, by the wall and by its own clock."""

    refused_s: list[float] = field(default_factory=list)
    own_s: list[float] = field(default_factory=list)
    whole_again_s: float = 0.0
    readiness: httpx.Response | None = None
    models: httpx.Response | None = None

    def summary(self, what: str) -> str:
        whole = f"whole {self.whole_again_s:.2f} s after its return"
        if not self.refused_s:
            return f"{what}: served, {whole}"
        most = f"{1e3 * max(self.refused_s):.0f} ms at most ({1e3 * max(self.own_s):.0f} its own)"
        return f"{what}: refused in {most}, {whole}"

    def note(self, seconds: float, own_s: float) -> None:
        """A refusal. Fails where new work hangs."""
        assert own_s < NO_HANG_S, f"refused in {seconds:.2f} s, {own_s:.2f} s of them its own"
        self.refused_s.append(seconds)
        self.own_s.append(own_s)

    @property
    def readiness_checks(self) -> tuple[int, str, str]:
        """The status of /readyz, and what it said of registry and queue."""
        assert self.readiness is not None
        checks = self.readiness.json()["checks"]
        return self.readiness.status_code, checks["registry"], checks["queue"]


@dataclass
class Site:
    context: AppContext
    client: httpx.AsyncClient
    operator: Operator
    tenant: Tenant
    redis_link: Relay
    postgres_link: Relay
    owner: Database
    ledger: LedgerJobs
    queue: Redis

    async def ask(self, max_tokens: int = 4, **fields: Any) -> httpx.Response:
        body = {"model": MODEL_ID, "prompt": "abcdefgh", "max_tokens": max_tokens}
        return await self.client.post(PATH, json=body | fields)

    async def is_served(self) -> bool:
        return (await self.ask()).status_code == 200

    async def through(self, begin: Act, end: Act, *, is_refused: bool = True) -> Outage:
        """A stream runs; `begin` a fault, ask for new work, look around, and `end` it.

        is_refused: new work is answered 503; otherwise it is served.
        """
        outage = Outage()
        await eventually(self.is_served)
        options = {"include_usage": True}
        streaming = asyncio.create_task(self.ask(NUM_TOKENS, stream=True, stream_options=options))
        await until(lambda: self.context.queue.num_in_flight == 1)
        await asyncio.sleep(5 * STEP_S)

        await _do(begin)
        for _ in range(NUM_REFUSALS):
            if is_refused:
                outage.note(*await self.refused_s())
            else:
                assert await self.is_served()
        outage.readiness = await self.client.get("/readyz")
        outage.models = await self.client.get("/v1/models")
        await _do(end)

        began_at = time.monotonic()
        await eventually(self.is_served, timeout_s=WHOLE_AGAIN_S)
        outage.whole_again_s = time.monotonic() - began_at
        streamed = await streaming
        assert streamed.text.endswith("data: [DONE]\n\n"), streamed.text[-300:]
        assert f'"completion_tokens":{NUM_TOKENS}' in streamed.text
        await eventually(self._all_ended, timeout_s=20)
        await self._check_ledger()
        assert self.context.admission.num_held == self.context.queue.num_in_flight == 0
        return outage

    async def without_postgres(self, begin: Act, end: Act, *, is_refused: bool = True) -> Outage:
        """`through`, and amid it an engine says what a request used: it is written, if later."""

        async def begin_and_say() -> None:
            await _do(begin)
            record = Codec(QUEUE_SECRET).encode(make_record(USED, reason=None))
            await self.queue.xadd(keys.USAGE, {"record": record})

        outage = await self.through(begin_and_say, end, is_refused=is_refused)
        assert USED in {row["request_id"] for row in await Rows(self.owner).events()}
        return outage

    async def refused_s(self) -> tuple[float, float]:
        """How long a refusal takes, and how long without the wait for a processor."""
        began_at, own_began_at = time.monotonic(), own_time_s()
        response = await self.ask()
        seconds, own_s = time.monotonic() - began_at, own_time_s() - own_began_at
        assert response.status_code == 503, response.text
        assert response.json()["error"]["code"] == "dependency_unavailable"
        assert int(response.headers["retry-after"]) >= 1
        return seconds, own_s

    async def _all_ended(self) -> bool:
        return {row["state"] for row in await Rows(self.owner).requests()} == {"ended"}

    async def _check_ledger(self) -> None:
        rows = Rows(self.owner)
        finals = {row["request_id"]: row for row in await rows.finals()}
        assert set(finals) == {row["request_id"] for row in await rows.requests()}
        assert NUM_TOKENS in {row["num_generated_tokens"] for row in finals.values()}
        assert not any(self.ledger.num_refused.values()), "what was used is not on the bill"


async def _do(act: Act) -> None:
    done = act()
    if isinstance(done, Awaitable):
        await done


@asynccontextmanager
async def open_site(
    settings: Settings,
    owner_url: str,
    direct_redis_url: str,
    redis_link: Relay,
    postgres_link: Relay,
) -> AsyncIterator[Site]:
    """`settings` lead over the links; the tests' own looks do not."""
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(open_context(settings))
        ledger = await stack.enter_async_context(_keeping_the_ledger(settings))
        owner = Database(owner_url, pool_size=2)
        stack.push_async_callback(owner.close)
        queue = await stack.enter_async_context(
            open_async_redis(direct_redis_url, max_connections=1)
        )
        transport = httpx.ASGITransport(create_admin_app(context))
        admin = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://tenfold.test")
        )
        jobs = JobRunner(context.database, context.store, context.base, context.now)
        operator = Operator(admin, jobs)
        tenant = await operator.new_tenant("acme")
        url = await stack.enter_async_context(serving(create_app(context)))
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, headers=tenant.headers, timeout=60)
        )
        freeze_startup()  # as a process does: what the tests have loaded is no part of it
        stack.callback(gc.unfreeze)
        yield Site(
            context=context,
            client=client,
            operator=operator,
            tenant=tenant,
            redis_link=redis_link,
            postgres_link=postgres_link,
            owner=owner,
            ledger=ledger,
            queue=queue,
        )


@asynccontextmanager
async def _keeping_the_ledger(settings: Settings) -> AsyncIterator[LedgerJobs]:
    """As a worker does, through whatever happens; it must not end by it."""
    registry = Database(settings.database_url, pool_size=1, statement_timeout_s=LEDGER_TIMEOUT_S)
    ledger, stopping = LedgerJobs(registry, settings), asyncio.Event()
    keeping = asyncio.create_task(ledger.run(stopping))
    try:
        yield ledger
    finally:
        stopping.set()
        await keeping
        await ledger.close()
        await registry.close()


@asynccontextmanager
async def stub_engine(redis_url: str) -> AsyncIterator[StubEngine]:
    """In threads of its own: it must not stop the loop that carries its link."""
    engine = StubEngine(redis_url, step_s=STEP_S)
    await asyncio.to_thread(engine.start)
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.stop)


@asynccontextmanager
async def linked(url: str, upstream_port: Callable[[], int]) -> AsyncIterator[tuple[str, Relay]]:
    """`url` over a relay."""
    port = urlsplit(url).port
    async with Relay(upstream_port) as relay:
        yield url.replace(f":{port}/", f":{relay.port}/"), relay
