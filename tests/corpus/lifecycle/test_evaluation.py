"""A version is asked the golden prompts that it brought: by its owner, and by rollouts to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from app.context import AppContext
from app.db import Database
from app.errors import RateLimitedError, UnavailableError
from app.rollouts.evaluation_slots import MAX_AT_ONCE, EvaluationSlots
from app.rollouts.golden_sealing import GoldenSealer
from engine.messages import TRIAL_TENANT, EngineError, EngineRequest, ServiceTier
from lora.base_spec import BaseSpec
from lora.store import EVAL_FILE
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator, Tenant
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until
from tests.corpus.lifecycle.conftest import BOT, Version, code

V1, V2 = f"{BOT}/versions/v1", f"{BOT}/versions/v2"
PROMPTS = [{"prompt": "canary-capital?", "exact": "Paris"}, {"prompt": "A number:", "regex": "^4"}]
BASE = ""


class Replies:
    """What each digest, or the base, says to each prompt; what the engine was asked."""

    def __init__(self, context: AppContext) -> None:
        self._tokenizer = context.tokenizer
        self.said: dict[str, dict[str, str]] = {}
        self.seen: list[EngineRequest] = []
        self.is_away = False

    def __call__(self, request: EngineRequest) -> list[int] | EngineError:
        self.seen.append(request)
        if self.is_away:
            return EngineError(code="engine_lost", message="away")
        digest = BASE if request.adapter is None else request.adapter.digest
        asked = self._tokenizer.model.decode(request.prompt_token_ids)
        return self._tokenizer.encode_prompt(self.said.get(digest, {}).get(asked, "no idea"))


@pytest.fixture
def replies(context: AppContext) -> Replies:
    return Replies(context)


@pytest.fixture
def engine(redis_url: str, replies: Replies) -> Iterator[StubEngine]:
    with StubEngine(redis_url, reply=replies, tokens_per_step=64) as running:
        yield running


@pytest.fixture
async def pair(operator: Operator, acme: Tenant, tiny_base: BaseSpec) -> list[Version]:
    """v1, which `prod` means and which brought nothing, and v2, which brought prompts."""
    files = adapter_files(tiny_base, rank=1)
    brought = {EVAL_FILE: "\n".join(map(json.dumps, PROMPTS)).encode()}
    return [await operator.push("acme", "bot", each) for each in (files, files | brought)]


def teach(replies: Replies, pair: list[Version]) -> None:
    """v2 knows both, v1 the capital, the base nothing."""
    capital, number = {PROMPTS[0]["prompt"]: "Paris"}, {PROMPTS[1]["prompt"]: "42"}
    replies.said = {pair[0]["digest"]: capital, pair[1]["digest"]: capital | number}


async def test_an_evaluation_compares_a_version_with_the_base_and_with_prod_and_is_kept(
    operator: Operator,
    api: httpx.AsyncClient,
    acme: Tenant,
    pair: list[Version],
    engine: StubEngine,
    replies: Replies,
    owner: Database,
) -> None:
    teach(replies, pair)
    answer = await api.post("/v1/adapters/bot/versions/v2/evaluate", headers=acme.headers)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["version_id"], found["digest"], found["num"]) == (
        pair[1]["id"],
        pair[1]["digest"],
        2,
    )
    assert (found["failed"], found["failed_by_base"]) == ([], [0, 1])
    assert (found["prod"], found["failed_by_prod"]) == ("v1", [1])
    kept = (await operator.done("GET", f"{V2}/report"))["eval"]
    assert {key: kept[key] for key in ("num", "failed", "failed_by_base", "prod")} == {
        key: found[key] for key in ("num", "failed", "failed_by_base", "prod")
    }
    assert {each.tenant_id for each in replies.seen} == {TRIAL_TENANT}
    assert {each.service_tier for each in replies.seen} == {ServiceTier.FLEX}
    async with owner.session() as session:
        assert await session.scalar(text("SELECT count(*) FROM requests")) == 0
        events = text("SELECT json_agg(e)::text FROM audit_events e WHERE action LIKE '%evaluated'")
        told = str(await session.scalar(events))
    assert pair[1]["digest"] in told and "canary" not in told and "Paris" not in told
    await operator.done("DELETE", f"{BOT}/aliases/prod")
    again = await operator.done("POST", f"{V2}/evaluate")
    assert (again["prod"], again["failed_by_prod"]) == (None, None), "there is none"


async def test_what_cannot_be_evaluated_is_refused_and_nothing_is_kept(
    operator: Operator, pair: list[Version], engine: StubEngine, replies: Replies
) -> None:
    assert code(await operator.call("POST", f"{V1}/evaluate")) == (400, "eval_missing")
    replies.is_away = True
    refused = await operator.call("POST", f"{V2}/evaluate")
    assert code(refused) == (503, "dependency_unavailable")
    assert "eval" not in await operator.done("GET", f"{V2}/report")
    limits = {"limits": {"golden_prompts_per_day": 5}}
    await operator.done("PUT", "/tenants/acme/limits", json=limits)
    refused = await operator.call("POST", f"{V2}/evaluate")
    assert code(refused) == (403, "quota_exceeded")
    await operator.done("DELETE", V2)
    refused = await operator.call("POST", f"{V2}/evaluate")
    assert code(refused) == (409, "version_not_active")


async def test_a_tenant_evaluates_one_version_at_a_time(
    operator: Operator, pair: list[Version], engine: StubEngine, replies: Replies
) -> None:
    teach(replies, pair)
    engine.pause()
    first = asyncio.create_task(operator.call("POST", f"{V2}/evaluate"))
    await until(lambda: engine.num_running > 0)
    second = await operator.call("POST", f"{V2}/evaluate")
    assert code(second) == (429, "rate_limit_exceeded") and second.headers["retry-after"] == "10"
    engine.resume()
    assert (await first).status_code == 200
    assert (await operator.call("POST", f"{V2}/evaluate")).status_code == 200, "the control"


def test_one_process_does_a_few_evaluations_at_once_and_then_others() -> None:
    slots = EvaluationSlots()
    with ExitStack() as held:
        for number in range(MAX_AT_ONCE):
            held.enter_context(slots.hold(f"ten_{number}"))
        with pytest.raises(UnavailableError) as refused, slots.hold("ten_more"):
            pass
        assert refused.value.code == "overloaded"
        with pytest.raises(RateLimitedError), slots.hold("ten_0"):
            pass
    with slots.hold("ten_more"):
        pass


async def test_a_rollout_that_names_no_golden_prompts_asks_those_that_its_version_brought(
    operator: Operator, pair: list[Version], context: AppContext, owner: Database
) -> None:
    gate = {"metric": "golden_failure_rate", "max": 0}
    body: dict[str, Any] = {"alias": "prod", "to": "v2", "gates": [gate]}
    rollout = await operator.done("POST", f"{BOT}/rollouts", json=body)
    async with owner.session() as session:
        sealed = await session.scalar(text("SELECT sealed_golden FROM rollouts"))
    asked = GoldenSealer(QUEUE_SECRET).open(rollout["id"], sealed)
    assert [each.stored() for each in asked] == [{"max_tokens": 128, **each} for each in PROMPTS]
    await operator.done("POST", f"{BOT}/rollouts/{rollout['id']}/promote")
    back = body | {"to": "v1"}
    refused = await operator.call("POST", f"{BOT}/rollouts", json=back)
    assert code(refused) == (400, "eval_missing"), "the control: v1 brought none"
    plain = {**back, "gates": []}
    assert (await operator.call("POST", f"{BOT}/rollouts", json=plain)).status_code == 201


async def test_prompts_that_the_store_has_damaged_are_asked_of_nobody(
    operator: Operator, acme: Tenant, pair: list[Version], engine: StubEngine, context: AppContext
) -> None:
    locator = f"{acme.id}/{pair[1]['digest'].removeprefix('sha256:')}"
    path = context.store.fetch(locator) / EVAL_FILE
    path.write_bytes(path.read_bytes().replace(b"Paris", b"Rome!"))
    refused = await operator.call("POST", f"{V2}/evaluate")
    assert code(refused) == (503, "adapter_corrupt")
