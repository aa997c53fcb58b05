"""What golden prompts may cost others: nothing on the event loop, a turn, and so many a day.

And what becomes of those that can never be asked.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import jsonschema_rs
import pytest

from app.completions.tokenizer import Tokenizer
from app.context import AppContext
from app.rollouts import expectations
from app.rollouts.expectations import (
    MAX_PATTERN_CHARS,
    MAX_SCHEMA_CHARS,
    MAX_SCHEMA_PATTERNS,
    ExpectationError,
    expects_json,
)
from app.rollouts.golden_jobs import PATIENCE, RETRY, GoldenJobs
from app.rollouts.golden_schemas import MAX_PROMPTS
from app.rollouts.jobs import RolloutJobs
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.clock import Clock
from tests.builders.operator import OPERATOR, Operator
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until
from tests.corpus.lifecycle.conftest import BOT, Version, code
from tests.corpus.lifecycle.golden.conftest import NewJobs
from tests.corpus.lifecycle.golden.world import (
    GATE,
    GOLDEN,
    PROD,
    ROLLOUTS,
    Replies,
    shown,
    start,
)

OTHER_SECRET = "a secret of after they were sealed"
OTHERS = "/tenants/globex/adapters/bot/rollouts"
DAY_S = 86_400


@pytest.mark.parametrize(
    ("change", "reason"),
    [("secret", "golden_prompts_unreadable"), ("base", "context_length_exceeded")],
)
async def test_prompts_that_can_never_be_asked_fail_their_gate_after_a_while_and_it_says_why(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    replies: Replies,
    new_jobs: NewJobs,
    worker: RolloutJobs,
    context: AppContext,
    clock: Clock,
    change: str,
    reason: str,
) -> None:
    jobs = new_jobs(OTHER_SECRET)
    if change == "base":
        jobs = new_jobs(base=replace(context.base, max_model_len=8))
    rollout = await start(operator)
    assert await jobs.work_next()
    assert (await shown(operator, rollout))["golden"] is None, "others may know better meanwhile"
    assert not await jobs.work_next(), "and it is not tried all the time"

    clock.advance(PATIENCE.total_seconds() + 1)
    assert await jobs.work_next()

    found = await shown(operator, rollout)
    assert found["golden"]["error"] == reason
    assert await worker.work() == 1
    done = await shown(operator, rollout)
    assert (done["state"], done["share"]) == ("rolled_back", 0)
    (gate,) = done["verdict"]["gates"]
    assert (gate["verdict"], gate["reason"]) == ("fail", reason)
    events = (await operator.done("GET", "/audit/acme", params={"limit": 100}))["data"]
    (event,) = [each for each in events if each["action"] == "rollout.rolled_back"]
    assert event["after"]["verdict"]["gates"][0]["reason"] == reason
    assert replies.seen == [] and (await operator.done("GET", PROD))["version"] == "v1"
    clock.advance(DAY_S)
    assert not await jobs.work_next(), "it is over"


async def test_control_prompts_are_asked_by_a_worker_that_can_and_engines_are_waited_for_for_long(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    replies: Replies,
    new_jobs: NewJobs,
    golden: GoldenJobs,
    clock: Clock,
) -> None:
    rollout = await start(operator)
    assert await new_jobs(OTHER_SECRET).work_next()
    clock.advance(RETRY.total_seconds() + 1)
    replies.broken[versions[1]["digest"]] = "engine_overloaded"
    for _ in range(3):
        assert await golden.work_next()
        assert (await shown(operator, rollout))["golden"] is None
        clock.advance(PATIENCE.total_seconds() + 1)
    replies.broken.clear()
    assert await golden.work_next()
    found = (await shown(operator, rollout))["golden"]
    assert (found["failed"], found["error"]) == ([], None)


@pytest.mark.parametrize(("timeout_s", "problem"), [(0.3, "golden_prompts_timeout"), (60, None)])
async def test_prompts_that_take_too_long_as_a_whole_fail_their_gate_and_it_says_why(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    new_jobs: NewJobs,
    worker: RolloutJobs,
    timeout_s: float,
    problem: str | None,
) -> None:
    """With the control: the same engine, and patience enough."""
    rollout = await start(operator)
    engine.pause()
    asking = asyncio.create_task(new_jobs(timeout_s=timeout_s).work_next())
    await until(lambda: engine.num_running > 0)
    await asyncio.wait((asking,), timeout=1.0)
    assert asking.done() == (problem is not None)
    engine.resume()
    assert await asking
    assert (await shown(operator, rollout))["golden"]["error"] == problem
    assert await worker.work() == (problem is not None)
    done = await shown(operator, rollout)
    if problem is None:
        assert done["state"] == "running"
    else:
        (gate,) = done["verdict"]["gates"]
        assert (done["state"], gate["verdict"], gate["reason"]) == ("rolled_back", "fail", problem)


@pytest.fixture
async def rollouts_of_two(
    operator: Operator, versions: list[Version], tiny_base: BaseSpec
) -> dict[str, list[dict[str, Any]]]:
    """By tenant: of acme's three, which came first, and of globex's one."""
    await operator.new_tenant("globex")
    await operator.new_adapter("globex", "bot")
    for seed in (4, 5):
        await operator.push("globex", "bot", adapter_files(tiny_base, rank=1, seed=seed))
    for alias in ("second", "third"):
        await operator.done("PUT", f"{BOT}/aliases/{alias}", json={"version": "v1"})
    acmes = [await start(operator, alias=alias) for alias in ("prod", "second", "third")]
    return {ROLLOUTS: acmes, OTHERS: [await start(operator, path=OTHERS)]}


async def num_asked(operator: Operator, path: str, rollouts: list[dict[str, Any]]) -> int:
    found = [await shown(operator, each, path=path) for each in rollouts]
    return sum(each["golden"] is not None for each in found)


async def test_a_tenant_with_many_rollouts_holds_up_nobody_elses(
    operator: Operator,
    rollouts_of_two: dict[str, list[dict[str, Any]]],
    engine: StubEngine,
    golden: GoldenJobs,
) -> None:
    for expected in ((1, 0), (1, 1), (2, 1), (3, 1)):
        assert await golden.work_next()
        found = [await num_asked(operator, *each) for each in rollouts_of_two.items()]
        assert tuple(found) == expected
    assert not await golden.work_next()


async def test_a_tenant_whose_candidate_is_slow_holds_up_its_own_rollouts_alone(
    operator: Operator,
    rollouts_of_two: dict[str, list[dict[str, Any]]],
    engine: StubEngine,
    replies: Replies,
    golden: GoldenJobs,
) -> None:
    engine.pause()
    slow = asyncio.create_task(golden.work_next())
    await until(lambda: bool(replies.seen))
    other = asyncio.create_task(golden.work_next())
    await until(lambda: len(owners(replies)) == 2)
    assert not await golden.work_next(), "acme has two more, and its turn already"
    engine.resume()
    assert await slow and await other
    found = [await num_asked(operator, *each) for each in rollouts_of_two.items()]
    assert found == [1, 1]


def owners(replies: Replies) -> set[str]:
    return {each.adapter.tenant_id for each in replies.seen if each.adapter is not None}


async def limit(operator: Operator, num: int) -> None:
    limits = {"golden_prompts_per_day": num}
    await operator.done("PUT", "/tenants/acme/limits", json={"limits": limits})


async def test_a_tenants_golden_prompts_of_a_day_are_limited(
    operator: Operator, versions: list[Version], clock: Clock
) -> None:
    await limit(operator, 2 * len(GOLDEN) - 1)
    first = await start(operator)
    await operator.done("POST", f"{ROLLOUTS}/{first['id']}/cancel")
    body = {"alias": "prod", "to": "v2", "gates": [GATE], "golden": GOLDEN}
    for _ in range(2):  # what is refused is not counted
        refused = await operator.call("POST", ROLLOUTS, json=body)
        assert code(refused) == (403, "quota_exceeded")
        said = refused.json()["error"]["quota"]
        assert said == {
            "name": "golden_prompts_per_day",
            "limit": 5,
            "used": 3,
            "wanted": 3,
            "source": "tenant",
        }
    assert (await operator.done("GET", PROD))["version"] == "v1"
    # The control: a rollout without any, and the next day.
    await operator.done("POST", ROLLOUTS, json={"alias": "prod", "to": "v3"})
    clock.advance(DAY_S)
    await operator.done("PUT", f"{BOT}/aliases/second", json={"version": "v1"})
    await start(operator, alias="second")


async def test_prompts_that_are_asked_again_count_again(
    operator: Operator, versions: list[Version]
) -> None:
    await limit(operator, 2 * len(GOLDEN) - 1)
    rollout = await start(operator)
    path = f"{ROLLOUTS}/{rollout['id']}"
    await operator.done("POST", f"{path}/pause")
    assert code(await operator.call("POST", f"{path}/resume")) == (403, "quota_exceeded")
    assert (await shown(operator, rollout))["state"] == "paused"
    await limit(operator, 2 * len(GOLDEN))
    assert (await operator.done("POST", f"{path}/resume"))["state"] == "running"
    assert (await operator.done("POST", f"{path}/resume"))["state"] == "running"


async def test_a_rollout_that_is_asked_for_twice_under_one_key_is_begun_and_counted_once(
    admin: httpx.AsyncClient, operator: Operator, versions: list[Version]
) -> None:
    await limit(operator, len(GOLDEN))
    body = {"alias": "prod", "to": "v2", "gates": [GATE], "golden": GOLDEN}
    headers = {**OPERATOR, "idempotency-key": "once"}
    path = f"/admin/v1{ROLLOUTS}"
    first, again = [await admin.post(path, json=body, headers=headers) for _ in range(2)]
    assert (first.status_code, again.status_code) == (201, 201), again.text
    assert again.json() == first.json() and again.headers["idempotent-replayed"] == "true"
    other = await admin.post(path, json={**body, "to": "v3"}, headers=headers)
    assert code(other) == (409, "idempotency_mismatch")


async def test_no_registry_connection_is_held_while_golden_prompts_are_tokenised(
    operator: Operator,
    versions: list[Version],
    context: AppContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[int] = []
    encode = Tokenizer.encode_prompt

    def watched(self: Tokenizer, text: str) -> list[int]:
        # SQLAlchemy says Pool; the one for servers, a QueuePool, counts.
        held.append(context.database.engine.pool.checkedout())  # type: ignore[attr-defined]
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "encode_prompt", watched)
    await start(operator)
    assert held and set(held) == {0}
    async with context.database.session():  # the control
        context.tokenizer.encode_prompt("x")
    assert held[-1] == 1


async def test_nothing_that_a_tenant_wrote_is_compiled_on_an_event_loop(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    golden: GoldenJobs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the API's nor a worker's; both are this thread's here."""
    threads: list[int] = []

    def watched(module: Any, name: str) -> None:
        work = getattr(module, name)

        def worked(*args: Any, **options: Any) -> Any:
            threads.append(threading.get_ident())
            return work(*args, **options)

        monkeypatch.setattr(module, name, worked)

    watched(jsonschema_rs, "validator_for")
    watched(expectations, "compile_pattern")
    rollout = await start(operator)
    assert len(threads) == 2
    assert await golden.work_next()
    assert (await shown(operator, rollout))["golden"]["failed"] == []
    assert len(threads) >= 4 and threading.get_ident() not in threads
    expects_json({})  # the control
    assert threads[-1] == threading.get_ident()


def worst_schema() -> dict[str, Any]:
    """As many patterns as there may be, each of which just compiles, and as much else as fits."""
    patterns = [f"^[a-zA-Z0-9_.-]{{1,900}}{each}$" for each in range(MAX_SCHEMA_PATTERNS)]
    schema: dict[str, Any] = {"patternProperties": dict.fromkeys(patterns, True)}
    schema["enum"] = ["x" * 7] * ((MAX_SCHEMA_CHARS - len(json.dumps(schema)) - 20) // 11)
    return schema


@asynccontextmanager
async def watched_loop() -> AsyncIterator[list[float]]:
    """How late the event loop was, each time that it had a turn, in seconds."""
    lateness: list[float] = []

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            lateness.append(time.perf_counter() - before - 0.001)

    ticking = asyncio.create_task(tick())
    try:
        yield lateness
    finally:
        ticking.cancel()


async def test_the_most_that_golden_schemas_may_cost_holds_nobody_up(
    admin: httpx.AsyncClient, operator: Operator, versions: list[Version]
) -> None:
    prompt = {"prompt": "x", "json_schema": worst_schema()}
    body = {"alias": "prod", "to": "v2", "gates": [GATE], "golden": [prompt] * MAX_PROMPTS}
    async with watched_loop() as lateness:
        answer = await admin.post(f"/admin/v1{ROLLOUTS}", json=body, headers=OPERATOR)
    assert answer.status_code == 201, answer.text
    began = time.thread_time()
    for _ in range(MAX_PROMPTS):  # the control: what it would be on the event loop
        expects_json(worst_schema())
    assert max(lateness) < time.thread_time() - began


def test_a_pattern_of_as_many_characters_as_may_be_is_refused_before_it_costs_much() -> None:
    for pattern in ("(a{1000}){1000}", "(\\p{L}{50}){50}", "[^\\x00]{1000}" * 30):
        assert len(pattern) <= MAX_PATTERN_CHARS
        began = time.thread_time()
        with pytest.raises(ExpectationError):
            expects_json({"pattern": pattern})
        assert time.thread_time() - began < 0.25
