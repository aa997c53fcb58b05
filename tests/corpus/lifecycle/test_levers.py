"""What operators have engines do with an adapter, and that engines themselves say what came of it.

On the real loop, page pool, scheduler and queue; the model is a hash and adapters have no bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from engine.messages import AdapterCommand, AdapterRef, Lever, Outcome, ResidencyState
from engine.transport import keys
from engine.transport.codec import Codec
from engine.transport.connection import open_redis
from engine.transport.levers import EngineLevers
from lora.base_spec import BaseSpec
from tests.builders.operator import Operator
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_loop import StubLoop
from tests.builders.waiting import eventually, until
from tests.corpus.lifecycle.conftest import BOT, Ask, Version, code

V1, V2 = f"{BOT}/versions/v1", f"{BOT}/versions/v2"
NUM_PAGES = 8


@pytest.fixture
async def levers(redis_url: str) -> AsyncIterator[EngineLevers]:
    opened = EngineLevers(redis_url, secret=QUEUE_SECRET)
    yield opened
    await opened.close()


@pytest.fixture
def small(redis_url: str, tiny_base: BaseSpec) -> Iterator[StubLoop]:
    """An engine of eight pages; an adapter takes one."""
    with StubLoop(redis_url, tiny_base, step_s=0.001, num_pages=NUM_PAGES) as running:
        yield running


def ref(number: int, tenant_id: str = "ten_a") -> AdapterRef:
    return AdapterRef(tenant_id=tenant_id, digest=f"sha256:{number:064x}", locator="x")


async def pull(
    levers: EngineLevers, lever: Lever, adapter: AdapterRef, **options: Any
) -> tuple[Outcome, str | None]:
    """What the only engine says."""
    await eventually(lambda: lives(levers))
    order = await levers.give(lever, adapter, await levers.live_engines(), **options)
    (ack,) = (await levers.answers(order, 10.0)).values()
    return ack.outcome, None if ack.error is None else ack.error.code


async def lives(levers: EngineLevers) -> bool:
    return bool(await levers.live_engines())


async def state_of(levers: EngineLevers, adapter: AdapterRef) -> ResidencyState | None:
    reports = await levers.reports(adapter.tenant_id, adapter.digest)
    return reports[0].state if reports else None


async def is_in(levers: EngineLevers, adapter: AdapterRef, state: ResidencyState | None) -> None:
    async def found() -> bool:
        return await state_of(levers, adapter) is state

    await eventually(found)


async def test_a_preloaded_adapter_is_ready_before_anybody_asks_for_it(
    levers: EngineLevers, small: StubLoop
) -> None:
    assert await pull(levers, Lever.PRELOAD, ref(1)) == (Outcome.READY, None)
    await is_in(levers, ref(1), ResidencyState.READY)
    (report,) = await levers.reports("ten_a", ref(1).digest)
    assert (report.engine_id, report.generation) == ("stub-loop", 1)
    assert report.num_bytes > 0
    assert small.core.residency.ready_keys() == {("ten_a", ref(1).digest)}
    assert not small.core.residency.preloading


async def test_preloads_at_once_are_each_answered_and_a_second_one_of_the_same_too(
    levers: EngineLevers, small: StubLoop
) -> None:
    adapters = [ref(1), ref(2), ref(1), ref(3)]
    said = await asyncio.gather(*(pull(levers, Lever.PRELOAD, each) for each in adapters))
    assert said == [(Outcome.READY, None)] * 4


async def test_an_evicted_adapter_is_gone_from_the_pool_and_comes_back_as_another_generation(
    levers: EngineLevers, small: StubLoop
) -> None:
    await pull(levers, Lever.PRELOAD, ref(1))
    assert await pull(levers, Lever.EVICT, ref(1)) == (Outcome.EVICTED, None)
    await is_in(levers, ref(1), None)
    assert await pull(levers, Lever.EVICT, ref(1)) == (Outcome.ABSENT, None)
    await pull(levers, Lever.PRELOAD, ref(1))
    await is_in(levers, ref(1), ResidencyState.READY)
    (report,) = await levers.reports("ten_a", ref(1).digest)
    assert report.generation == 2


async def test_a_pinned_adapter_stays_where_others_have_to_leave(
    levers: EngineLevers, small: StubLoop
) -> None:
    far = 4e9
    assert await pull(levers, Lever.PIN, ref(1), until_s=far) == (Outcome.PINNED, None)
    for number in range(2, 2 + 2 * NUM_PAGES):
        assert (await pull(levers, Lever.PRELOAD, ref(number)))[0] is Outcome.READY
    assert ("ten_a", ref(1).digest) in small.core.residency.ready_keys()
    (report,) = await levers.reports("ten_a", ref(1).digest)
    assert report.pinned_until_s == far
    small.core.check_integrity()


async def test_control_an_adapter_that_is_not_pinned_leaves(
    levers: EngineLevers, small: StubLoop
) -> None:
    await pull(levers, Lever.PRELOAD, ref(1))
    for number in range(2, 2 + 2 * NUM_PAGES):
        await pull(levers, Lever.PRELOAD, ref(number))
    assert ("ten_a", ref(1).digest) not in small.core.residency.ready_keys()


async def test_a_pin_ends_by_itself(levers: EngineLevers, small: StubLoop) -> None:
    await pull(levers, Lever.PIN, ref(1), until_s=1.0)  # a second after 1970 began
    for number in range(2, 2 + 2 * NUM_PAGES):
        await pull(levers, Lever.PRELOAD, ref(number))
    assert not small.core.residency.pins
    assert ("ten_a", ref(1).digest) not in small.core.residency.ready_keys()


async def test_pins_take_half_of_the_pool_at_most(levers: EngineLevers, small: StubLoop) -> None:
    outcomes = [
        await pull(levers, Lever.PIN, ref(number), until_s=4e9) for number in range(NUM_PAGES)
    ]
    half = NUM_PAGES // 2
    assert outcomes == [(Outcome.PINNED, None)] * half + [(Outcome.FAILED, "pin_refused")] * (
        NUM_PAGES - half
    )


async def test_what_was_let_go_is_nowhere(levers: EngineLevers, small: StubLoop) -> None:
    await pull(levers, Lever.PIN, ref(1), until_s=4e9)
    assert await pull(levers, Lever.LET_GO, ref(1)) == (Outcome.GONE, None)
    await is_in(levers, ref(1), None)
    assert not small.core.residency.ready_keys() and not small.core.residency.pins
    assert small.core.host_tier.find(("ten_a", ref(1).digest)) is None
    assert small.is_empty


async def test_another_tenants_adapter_with_the_same_bytes_is_not_touched(
    levers: EngineLevers, small: StubLoop
) -> None:
    mine, theirs = ref(1), ref(1, "ten_b")
    for adapter in (mine, theirs):
        await pull(levers, Lever.PRELOAD, adapter)
    await pull(levers, Lever.LET_GO, mine)
    assert small.core.residency.ready_keys() == {("ten_b", theirs.digest)}


async def test_a_command_that_was_sealed_with_another_secret_is_not_heard(
    redis_url: str, levers: EngineLevers, small: StubLoop
) -> None:
    await pull(levers, Lever.PRELOAD, ref(1))
    forger = EngineLevers(redis_url, secret="another secret that is just as long")
    order = await forger.give(Lever.LET_GO, ref(1), ["stub-loop"])
    assert await forger.answers(order, 0.5) == {}
    await forger.close()
    assert small.core.residency.ready_keys()


async def test_control_the_same_command_with_the_right_secret_is_heard(
    levers: EngineLevers, small: StubLoop
) -> None:
    await pull(levers, Lever.PRELOAD, ref(1))
    await pull(levers, Lever.LET_GO, ref(1))
    assert not small.core.residency.ready_keys()


async def test_a_command_that_lay_about_until_nobody_waited_does_nothing(
    redis_url: str, levers: EngineLevers, small: StubLoop
) -> None:
    """It is put on the engine's list once more when its answer is no longer kept."""
    await pull(levers, Lever.PRELOAD, ref(1))
    order = await levers.give(Lever.LET_GO, ref(2), ["stub-loop"])
    await levers.answers(order, 10.0)
    codec = Codec(QUEUE_SECRET)
    with open_redis(redis_url, max_connections=1) as server:
        stale = AdapterCommand(command_id="stale", lever=Lever.LET_GO, adapter=ref(1))
        server.rpush(keys.control("stub-loop"), codec.encode(stale))
    assert (await pull(levers, Lever.PRELOAD, ref(3)))[0] is Outcome.READY
    assert ("ten_a", ref(1).digest) in small.core.residency.ready_keys()


async def test_reports_are_whole_again_after_redis_lost_them(
    redis_url: str, levers: EngineLevers, small: StubLoop
) -> None:
    await pull(levers, Lever.PRELOAD, ref(1))
    await is_in(levers, ref(1), ResidencyState.READY)
    with open_redis(redis_url, max_connections=1) as server:
        server.delete(keys.residency("stub-loop"))
    await is_in(levers, ref(1), ResidencyState.READY)


async def test_an_engine_that_died_is_neither_waited_for_nor_shown(
    levers: EngineLevers, redis_url: str, tiny_base: BaseSpec
) -> None:
    with StubLoop(redis_url, tiny_base, step_s=0.001) as running:
        await until(lambda: running.loop.snapshot is not None)
        await pull(levers, Lever.PRELOAD, ref(1))
        await is_in(levers, ref(1), ResidencyState.READY)
    assert await levers.live_engines() == []
    assert await levers.reports("ten_a", ref(1).digest) == []
    order = await levers.give(Lever.PRELOAD, ref(1), ["stub-loop"])
    began_at = asyncio.get_running_loop().time()
    assert await levers.answers(order, 10.0) == {}
    assert asyncio.get_running_loop().time() - began_at < 5


async def test_operators_preload_and_see_where_a_version_is(
    operator: Operator, versions: list[Version], engine: StubLoop, levers: EngineLevers, ask: Ask
) -> None:
    await eventually(lambda: lives(levers))
    assert (await operator.done("GET", f"{V1}/residency"))["data"] == []
    told = await operator.done("POST", f"{V1}/preload", json={"replicas": 1})
    assert told["engines"] == [{"engine_id": "stub-loop", "outcome": "ready", "error": None}]

    async def shown() -> bool:
        rows = (await operator.done("GET", f"{V1}/residency"))["data"]
        return [row["state"] for row in rows] == ["READY"]

    await eventually(shown)
    assert (await ask("bot")).status_code == 200
    pinned = await operator.done("POST", f"{V2}/pin", json={})
    assert pinned["engines"][0]["outcome"] == "pinned"
    evicted = await operator.done("POST", f"{V2}/evict")
    assert evicted["engines"][0]["outcome"] == "evicted"

    async def used() -> bool:
        rows = (await operator.done("GET", f"{V1}/residency"))["data"]
        return [row["last_used"] is not None for row in rows] == [True]

    await eventually(used)
    events = (await operator.done("GET", "/audit/acme", params={"limit": 100}))["data"]
    pulled = {each["action"]: each["after"] for each in events}
    assert pulled["version.pinned"]["engines"] == {"stub-loop": "pinned"}


async def test_a_rejected_version_is_not_loaded(
    operator: Operator, versions: list[Version], engine: StubLoop
) -> None:
    await operator.done("DELETE", V2)
    refused = await operator.call("POST", f"{V2}/preload")
    assert code(refused) == (409, "version_not_active")


async def test_an_adapter_in_use_is_busy(
    operator: Operator, versions: list[Version], engine: StubLoop, ask: Ask, levers: EngineLevers
) -> None:
    await eventually(lambda: lives(levers))
    running = asyncio.create_task(ask("bot@v1", max_tokens=200, stop=[]))
    await until(lambda: bool(engine.core.residency.ready_keys()))
    busy = await operator.done("POST", f"{V1}/evict")
    outcome = busy["engines"][0]["outcome"]
    assert outcome == "busy" or running.done()
    assert (await running).status_code == 200


async def test_an_alias_moves_when_its_target_is_there_and_not_before(
    operator: Operator, versions: list[Version], engine: StubLoop, levers: EngineLevers
) -> None:
    await eventually(lambda: lives(levers))
    path = f"{BOT}/aliases/prod"
    moved = await operator.done("PUT", path, json={"version": "v2"}, params={"wait": 10})
    assert moved["version"] == "v2"
    digests = {digest for _, digest in engine.core.residency.ready_keys()}
    assert digests == {versions[1]["digest"]}


async def test_an_alias_does_not_move_to_what_no_engine_has_ready(
    operator: Operator, versions: list[Version], engine: StubLoop, levers: EngineLevers
) -> None:
    await eventually(lambda: lives(levers))
    path = f"{BOT}/aliases/prod"
    refused = await operator.call("PUT", path, json={"version": "v2"})
    assert code(refused) == (409, "target_not_ready")
    assert refused.headers["x-should-retry"] == "false"
    assert (await operator.done("GET", path))["version"] == "v1"

    await operator.done("POST", f"{V2}/preload")

    async def is_there() -> bool:
        rows = (await operator.done("GET", f"{V2}/residency"))["data"]
        return [row["state"] for row in rows] == ["READY"]

    await eventually(is_there)
    assert (await operator.done("PUT", path, json={"version": "v2"}))["version"] == "v2"
    waited = await operator.done("PUT", path, json={"version": "v3"}, params={"wait": "true"})
    assert waited["version"] == "v3"


async def test_what_an_alias_means_already_may_have_another_alias_wherever_it_is(
    operator: Operator, versions: list[Version], engine: StubLoop, levers: EngineLevers
) -> None:
    await eventually(lambda: lives(levers))
    path = f"{BOT}/aliases/stable"
    assert (await operator.done("PUT", path, json={"version": "v1"}))["version"] == "v1"


async def test_where_no_engine_lives_an_alias_moves_at_once(
    operator: Operator, versions: list[Version]
) -> None:
    """A fleet that has scaled to zero: there is nobody who could have it."""
    path = f"{BOT}/aliases/prod"
    assert (await operator.done("PUT", path, json={"version": "v2"}))["version"] == "v2"


async def test_a_target_is_waited_for_while_an_engine_starts(
    operator: Operator, versions: list[Version], redis_url: str, tiny_base: BaseSpec
) -> None:
    path = f"{BOT}/aliases/prod"
    moving = asyncio.create_task(
        operator.done("PUT", path, json={"version": "v2"}, params={"wait": 10})
    )
    await asyncio.sleep(0)
    with StubLoop(redis_url, tiny_base, step_s=0.001):
        assert (await moving)["version"] == "v2"


async def test_control_an_alias_whose_target_is_nowhere_in_time_does_not_move(
    operator: Operator, versions: list[Version]
) -> None:
    path = f"{BOT}/aliases/prod"
    refused = await operator.call("PUT", path, json={"version": "v2"}, params={"wait": 1})
    assert code(refused) == (409, "target_not_ready")
    assert (await operator.done("GET", path))["version"] == "v1"
