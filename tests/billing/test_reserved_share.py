"""A reserved share of the fleet on a real Valkey: kept while backlogged, and free while not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import httpx
import pytest
import redis
from msgspec import structs

from app.auth import verify_key
from app.context import AppContext
from engine.transport import keys
from engine.transport.load import QueueLoad
from engine.transport.server import GENERATED_TOKEN_COST, EngineStatus, EngineTransport
from tests.builders.operator import Operator, Tenant
from tests.builders.queue_driver import QueueDriver
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request

OTHERS = tuple(f"ten_{i}" for i in range(9))
GOLD = "ten_gold"
BACKLOG = 8  # more than an engine takes at once
MAX_PROMPT, MAX_OUTPUT = 400, 200
NUM_SEATS = 6  # of an engine
NUM_ENGINES = 2


class Fleet:
    """Engines with seats, each of which takes one request and generates all of it a step later."""

    def __init__(self, redis_url: str, server: redis.Redis, seed: int) -> None:
        self._server = server
        self._driver = QueueDriver(server)
        self._draw = Random(seed)
        self._engines = [
            EngineTransport(redis_url, f"engine-{i}", secret=QUEUE_SECRET)
            for i in range(NUM_ENGINES)
        ]
        self.service: Counter[str] = Counter()

    def run(
        self, num_rounds: int, shares: Mapping[str, float], tenants: Sequence[str]
    ) -> Counter[str]:
        """What each tenant gets while all of these are backlogged."""
        before = Counter(self.service)
        for _ in range(num_rounds):
            for tenant_id in tenants:
                while self._server.zcard(keys.queue(tenant_id)) < BACKLOG:
                    self._enqueue(tenant_id, shares.get(tenant_id, 0.0))
            self._serve(self._draw.choice(self._engines))
        return self.service - before

    def _enqueue(self, tenant_id: str, share: float) -> None:
        made = make_request(
            tenant_id,
            prompt=range(self._draw.randint(1, MAX_PROMPT)),
            max_tokens=self._draw.randint(1, MAX_OUTPUT),
        )
        self._driver.enqueue(structs.replace(made, reserved_share=share))

    def _serve(self, engine: EngineTransport) -> None:
        generated: Counter[str] = Counter()
        for request in engine.lease(100_000, 1, NUM_SEATS):
            num_tokens = request.sampling.max_tokens
            generated[request.tenant_id] += num_tokens
            self.service[request.tenant_id] += (
                len(request.prompt_token_ids) + GENERATED_TOKEN_COST * num_tokens
            )
            self._driver.abort(request.request_id)
        engine.heartbeat(EngineStatus(generated_tokens=generated))

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


@pytest.fixture
def fleet(redis_url: str) -> Iterator[Fleet]:
    with redis.Redis.from_url(redis_url, protocol=2) as server:
        made = Fleet(redis_url, server, seed=7)
        yield made
        made.close()


def part(got: Mapping[str, int], tenant_id: str) -> float:
    return got[tenant_id] / sum(got.values())


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_backlogged_tenant_gets_its_reserved_share_of_the_fleet(
    fleet: Fleet, share: float
) -> None:
    got = fleet.run(200, {GOLD: share}, [GOLD, *OTHERS])
    assert part(got, GOLD) >= share - 0.03
    for other in OTHERS:
        assert part(got, other) == pytest.approx((1 - share) / len(OTHERS), abs=0.03)


def test_control_without_the_share_it_gets_a_tenth(fleet: Fleet) -> None:
    assert part(fleet.run(200, {}, [GOLD, *OTHERS]), GOLD) < 0.15


def test_a_share_that_nobody_asks_for_is_had_by_the_others(fleet: Fleet) -> None:
    shares = {GOLD: 0.6}
    fleet.run(50, shares, [GOLD, *OTHERS])
    got = fleet.run(100, shares, OTHERS)
    # What GOLD still had in its queue is all that it gets.
    assert got[GOLD] <= BACKLOG * (MAX_PROMPT + GENERATED_TOKEN_COST * MAX_OUTPUT)


def test_what_was_had_while_the_others_were_away_is_not_paid_back(fleet: Fleet) -> None:
    shares = {GOLD: 0.4}
    assert part(fleet.run(150, shares, [GOLD]), GOLD) == 1.0
    assert part(fleet.run(120, shares, [GOLD, *OTHERS]), GOLD) >= 0.37


def test_a_share_taken_away_is_gone_with_the_next_request(fleet: Fleet) -> None:
    fleet.run(50, {GOLD: 0.6}, [GOLD, *OTHERS])
    fleet.run(20, {}, [GOLD, *OTHERS])
    assert part(fleet.run(150, {}, [GOLD, *OTHERS]), GOLD) < 0.15


def test_who_has_a_share_is_not_told_to_wait_for_all_the_others() -> None:
    load = QueueLoad(num_queued=1000, num_tenants=50, num_own=0, requests_per_s=10.0)
    assert load.expected_wait_s(reserved_share=0.5) == pytest.approx(0.1)
    assert load.expected_wait_s() == pytest.approx(5.0)


async def test_a_plans_share_reaches_the_request_and_all_shares_are_the_whole_at_most(
    operator: Operator, context: AppContext
) -> None:
    await operator.done("POST", "/plans", json={"name": "gold", "reserved_share": 0.6})
    acme = await operator.new_tenant("acme", plan="gold")
    assert (await verify_key(context, acme.secret)).terms.reserved_share == 0.6

    for refused in (
        await operator.call("POST", "/tenants", json={"slug": "globex", "plan": "gold"}),
        await _put(operator, acme, 1.5),
    ):
        assert refused.status_code in (400, 409)
    globex = await operator.new_tenant("globex")
    refused = await _put(operator, globex, 0.5)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "share_exceeded")
    assert refused.json()["error"]["reserved"] == pytest.approx(1.1)
    assert (await operator.done("GET", "/tenants/globex/limits"))["reserved_share"] == 0.0
    assert (await _put(operator, globex, 0.4)).is_success
    more = {"limits": {}, "reserved_share": 0.7}
    refused = await operator.call("PUT", "/plans/gold", json=more)
    assert refused.json()["error"]["code"] == "share_exceeded"


async def _put(operator: Operator, tenant: Tenant, share: float) -> httpx.Response:
    body = {"limits": {}, "reserved_share": share}
    return await operator.call("PUT", f"/tenants/{tenant.slug}/limits", json=body)
