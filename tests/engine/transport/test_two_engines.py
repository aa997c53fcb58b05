"""Two engines on one queue: fairness, affinity and ageing within the design's figures.

Nine tenants with an adapter each are always backlogged; an engine has room for four adapters. Every
single lease is judged against what waited before it. A step takes `STEP_S` by the times in the
queue, which are moved; all times are longer by `SCALE`, so that this machine's do not matter.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace

import pytest
import redis

from app.launcher.valkey import ValkeyServer
from engine.messages import AdapterRef, EngineRequest
from engine.transport import keys
from engine.transport.lease_rules import LeaseRules
from engine.transport.server import GENERATED_TOKEN_COST, EngineStatus, EngineTransport
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request

TENANTS = [f"ten_{i}" for i in range(9)]
ADAPTERS = {
    tenant: AdapterRef(tenant_id=tenant, digest=f"sha256:{i:064}", locator=tenant)
    for i, tenant in enumerate(TENANTS)
}
BACKLOG = 2
MAX_PROMPT, MAX_OUTPUT = 40, 20
MAX_RUNNING = 4
MAX_RESIDENT = 4
NUM_STEPS = 200
STEP_S = 0.005
SCALE = 40
DESIGN = LeaseRules()
RULES = replace(
    DESIGN, affinity_wait_s=SCALE * DESIGN.affinity_wait_s, max_age_s=SCALE * DESIGN.max_age_s
)
WITHOUT_AFFINITY = replace(RULES, affinity_wait_s=0.0)
LATE_S = 0.5
"""Of this machine's time, that a look at the queue may come before the lease."""


@dataclass(slots=True)
class Running:
    tenant_id: str
    num_left: int


@dataclass(slots=True)
class Engine:
    """Leases one at a time, runs what it leased, and keeps the adapters that it used last."""

    transport: EngineTransport
    running: list[Running] = field(default_factory=list)
    resident: OrderedDict[str, None] = field(default_factory=OrderedDict)
    unreported: Counter[str] = field(default_factory=Counter)
    num_loads: int = 0

    def take(self, request: EngineRequest) -> None:
        tenant_id = request.tenant_id
        self.running.append(Running(tenant_id, request.sampling.max_tokens))
        if tenant_id not in self.resident:
            self.num_loads += 1
            evicted = []
            if len(self.resident) == MAX_RESIDENT:
                evicted = [ADAPTERS[self.resident.popitem(last=False)[0]]]
            self.transport.update_resident([ADAPTERS[tenant_id]], evicted)
        self.resident[tenant_id] = None
        self.resident.move_to_end(tenant_id)

    def step(self, served: Counter[str]) -> None:
        for each in self.running:
            each.num_left -= 1
            served[each.tenant_id] += GENERATED_TOKEN_COST
            self.unreported[each.tenant_id] += 1
        self.running = [each for each in self.running if each.num_left > 0]
        self.transport.heartbeat(EngineStatus(generated_tokens=self.unreported))
        self.unreported = Counter()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tenant's first request, as it waits."""

    counter: float
    age_s: float
    passed_s: float


@dataclass(slots=True)
class Seen:
    num_leases: int = 0
    num_passes: int = 0
    num_loads: int = 0
    num_old: int = 0
    """That were past the age when they were served."""
    furthest: float = 0.0
    """Ahead of the least counter, of those that were served out of turn."""
    wrong: list[Waiting] = field(default_factory=list)
    """Passed by another tenant's request, though they had waited for too long."""
    gaps: list[float] = field(default_factory=list)
    """Between the tenants that had most and least."""


class Queue:
    """Two requests of every tenant, and what the server knows of them."""

    def __init__(self, server: redis.Redis, draw: random.Random) -> None:
        self._server = server
        self._driver = QueueDriver(server)
        self._draw = draw
        self._waiting: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}

    def fill(self) -> None:
        for tenant, waiting in self._waiting.items():
            while len(waiting) < BACKLOG:
                request = make_request(
                    tenant,
                    prompt=range(self._draw.randint(1, MAX_PROMPT)),
                    max_tokens=self._draw.randint(1, MAX_OUTPUT),
                    adapter=ADAPTERS[tenant],
                )
                self._driver.enqueue(request)
                waiting.append(request.request_id)

    def remove(self, request: EngineRequest) -> None:
        self._waiting[request.tenant_id].remove(request.request_id)

    def look(self) -> dict[str, Waiting]:
        """Who waits, in the order of the queue."""
        lane = self._server.zrange(f"{keys.PREFIX}tenants", 0, -1, withscores=True)
        with self._server.pipeline(transaction=False) as pipe:
            pipe.time()
            for tenant, _ in lane:
                pipe.hmget(_body(self._waiting[tenant][0]), "arrived_ms", "passed_ms")
            (seconds, microseconds), *bodies = pipe.execute()
        now_ms = seconds * 1000 + microseconds // 1000
        return {
            tenant: Waiting(
                counter,
                age_s=(now_ms - int(arrived)) / 1000,
                passed_s=(now_ms - int(passed)) / 1000 if passed else 0.0,
            )
            for (tenant, counter), (arrived, passed) in zip(lane, bodies, strict=True)
        }

    def let_pass(self, seconds: float) -> None:
        """All that waits has waited for so much longer."""
        ids = [request_id for waiting in self._waiting.values() for request_id in waiting]
        milliseconds = int(1000 * seconds)
        with self._server.pipeline(transaction=False) as pipe:
            for request_id in ids:
                pipe.hget(_body(request_id), "passed_ms")
            passed = pipe.execute()
            for request_id, passed_ms in zip(ids, passed, strict=True):
                pipe.hincrby(_body(request_id), "arrived_ms", -milliseconds)
                if passed_ms:
                    pipe.hincrby(_body(request_id), "passed_ms", -milliseconds)
            pipe.execute()


def _body(request_id: str) -> str:
    return f"{keys.PREFIX}request:{request_id}"


def judge(seen: Seen, waiting: dict[str, Waiting], taken: str, rules: LeaseRules) -> None:
    seen.num_leases += 1
    seen.num_old += waiting[taken].age_s > rules.max_age_s
    passed = list(waiting.values())[: list(waiting).index(taken)]
    if not passed:
        return
    seen.num_passes += 1
    seen.furthest = max(seen.furthest, waiting[taken].counter - passed[0].counter)
    seen.wrong += [
        each
        for each in passed
        if each.age_s > rules.max_age_s + LATE_S or each.passed_s > rules.affinity_wait_s + LATE_S
    ]


def run(redis_url: str, rules: LeaseRules) -> Seen:
    draw, seen, served = random.Random(7), Seen(), Counter(dict.fromkeys(TENANTS, 0))
    with redis.Redis.from_url(redis_url, protocol=2, decode_responses=True) as server:
        server.flushall()
        queue = Queue(server, draw)
        engines = [
            Engine(EngineTransport(redis_url, f"engine-{i}", secret=QUEUE_SECRET, rules=rules))
            for i in range(2)
        ]
        for number in range(NUM_STEPS):
            engine = engines[number % 2]
            while len(engine.running) < MAX_RUNNING:
                queue.fill()
                waiting = queue.look()
                [request] = engine.transport.lease(10**6, 16, 1)
                queue.remove(request)
                judge(seen, waiting, request.tenant_id, rules)
                served[request.tenant_id] += len(request.prompt_token_ids)
                engine.take(request)
            engine.step(served)
            queue.let_pass(SCALE * STEP_S)
            seen.gaps.append(max(served.values()) - min(served.values()))
        seen.num_loads = sum(engine.num_loads for engine in engines)
        for engine in engines:
            engine.transport.close()
    return seen


def bound(rules: LeaseRules) -> float:
    capacity = MAX_RUNNING * (MAX_PROMPT + MAX_OUTPUT)
    each = 2 * max(MAX_PROMPT, GENERATED_TOKEN_COST * capacity)
    return 2 * each + rules.affinity_slack_tokens


@pytest.fixture(scope="module")
def with_affinity(valkey: ValkeyServer) -> Seen:
    return run(valkey.url, RULES)


@pytest.fixture(scope="module")
def without_affinity(valkey: ValkeyServer) -> Seen:
    return run(valkey.url, WITHOUT_AFFINITY)


def test_fairness_is_within_its_bound(with_affinity: Seen) -> None:
    assert max(with_affinity.gaps) <= bound(RULES)


def test_affinity_reorders_within_its_slack(with_affinity: Seen) -> None:
    assert with_affinity.num_passes > with_affinity.num_leases / 10  # it did something
    assert with_affinity.furthest <= RULES.affinity_slack_tokens


def test_nobody_is_passed_past_the_age_or_for_longer_than_the_wait(with_affinity: Seen) -> None:
    assert with_affinity.num_old > 0  # the rule had to hold for somebody
    assert with_affinity.wrong == []


def test_affinity_saves_loads(with_affinity: Seen, without_affinity: Seen) -> None:
    assert with_affinity.num_loads < 0.7 * without_affinity.num_loads


def test_without_it_nobody_is_passed(without_affinity: Seen) -> None:
    """The control: what the others see is affinity's doing."""
    assert without_affinity.num_passes == 0
