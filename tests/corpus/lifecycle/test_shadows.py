"""A shadow runs beside an alias: compared, delivered to nobody, billed to nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from app.context import AppContext
from app.rollouts.shadowing import MAX_WATCHED_CHARS
from app.rollouts.shadows import ShadowModel, ShadowSample
from engine.messages import TRIAL_TENANT, AdapterRef, EngineError, EngineRequest
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import eventually
from tests.corpus.lifecycle.conftest import BOT, Ask, Version, code

PROD = f"{BOT}/aliases/prod"


class Replies:
    """What each digest says; a version's requests as the engine saw them."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self.texts: dict[str, str] = {}
        self.seen: list[EngineRequest] = []

    def __call__(self, request: EngineRequest) -> list[int] | EngineError:
        self.seen.append(request)
        assert request.adapter is not None
        text = self.texts[request.adapter.digest]
        if text == "broken":
            return EngineError(code="nonfinite_logits", message="broken")
        return self._context.tokenizer.encode_prompt(text)


@pytest.fixture
def replies(context: AppContext, versions: list[Version]) -> Replies:
    replies = Replies(context)
    for version in versions:
        replies.texts[version["digest"]] = "the same"
    return replies


@pytest.fixture
def engine(redis_url: str, replies: Replies) -> Iterator[StubEngine]:
    with StubEngine(redis_url, reply=replies) as running:
        yield running


async def set_shadow(operator: Operator, version: str = "v2", share: int = 100) -> None:
    body = {"version": "v1", "shadow": {"version": version, "weight": share}}
    shown = await operator.done("PUT", PROD, json=body)
    assert (shown["shadow"]["version"], shown["shadow"]["weight"]) == (version, share)


async def results(operator: Operator, num: int) -> dict[str, Any]:
    """When so many comparisons have been made."""

    async def has_them() -> bool:
        return bool((await operator.done("GET", f"{PROD}/shadow"))["num"] >= num)

    await eventually(has_them)
    return await operator.done("GET", f"{PROD}/shadow")


async def test_a_shadow_runs_too_and_only_the_alias_is_delivered(
    operator: Operator,
    versions: list[Version],
    replies: Replies,
    engine: StubEngine,
    ask: Ask,
) -> None:
    replies.texts[versions[1]["digest"]] = "the sane thing"
    await set_shadow(operator)
    answers = [await ask(max_tokens=50) for _ in range(5)]
    found = await results(operator, 5)

    assert {each.json()["choices"][0]["text"] for each in answers} == {"the same"}
    assert {each.headers["x-adapter-version"] for each in answers} == {"v1"}
    assert (found["num"], found["errors"], found["identical"]) == (5, 0, 0)
    assert found["agreement"] == pytest.approx(len("the sa") / len("the sane thing"))
    ran = [each.adapter.digest for each in replies.seen if each.adapter is not None]
    assert sorted(ran) == sorted([versions[0]["digest"], versions[1]["digest"]] * 5)


async def test_both_run_on_the_same_prompt_and_the_same_draws(
    operator: Operator, versions: list[Version], replies: Replies, engine: StubEngine, ask: Ask
) -> None:
    await set_shadow(operator)
    await ask(max_tokens=50, temperature=1.0, seed=7)
    found = await results(operator, 1)
    one, other = sorted(replies.seen, key=lambda request: request.tenant_id == TRIAL_TENANT)
    assert one.prompt_token_ids == other.prompt_token_ids and one.sampling == other.sampling
    assert found["identical"] == 1 and found["agreement"] == 1.0


async def test_a_shadow_is_on_nobodys_account(
    operator: Operator,
    versions: list[Version],
    replies: Replies,
    engine: StubEngine,
    ask: Ask,
    acme: Tenant,
) -> None:
    await operator.done("PUT", "/tenants/acme/limits", json={"limits": {"concurrency": 1}})
    await set_shadow(operator)
    for _ in range(4):
        assert (await ask(max_tokens=50)).status_code == 200
    await results(operator, 4)
    tenants = {each.tenant_id for each in replies.seen if each.adapter is not None}
    assert tenants == {acme.id, TRIAL_TENANT}
    own = [each for each in replies.seen if each.tenant_id == acme.id]
    assert {each.adapter.digest for each in own if each.adapter} == {versions[0]["digest"]}


async def test_a_broken_shadow_is_counted_and_harms_nobody(
    operator: Operator, versions: list[Version], replies: Replies, engine: StubEngine, ask: Ask
) -> None:
    replies.texts[versions[1]["digest"]] = "broken"
    await set_shadow(operator)
    answers = [await ask(max_tokens=50) for _ in range(3)]
    assert {each.status_code for each in answers} == {200}
    found = await results(operator, 3)
    assert (found["num"], found["errors"], found["agreement"]) == (3, 3, None)


@pytest.mark.parametrize("place", [None, 10])
async def test_long_answers_are_compared_as_far_as_both_are_watched(
    context: AppContext, place: int | None
) -> None:
    """Two that differ beyond that count as the same, and (the control) others do not."""
    text = "a" * (MAX_WATCHED_CHARS + 1)
    found = "a" * (MAX_WATCHED_CHARS + 900)
    if place is not None:
        found = found[:place] + "b" + found[place + 1 :]
    adapter = AdapterRef(tenant_id="ten_a", digest="sha256:" + "1" * 64, locator="")
    shadow = ShadowModel(adapter, "ver_a", "adp_a", "prod", 100)

    async def says() -> str:
        return found

    context.shadows.compare(shadow, text, asyncio.create_task(says()))

    async def is_compared() -> bool:
        return bool(await context.samples.read_shadows("adp_a", "prod"))

    await eventually(is_compared)
    (sample,) = await context.samples.read_shadows("adp_a", "prod")
    assert sample.is_identical == (place is None)
    assert sample.num_same == (MAX_WATCHED_CHARS if place is None else place)


async def test_a_share_of_the_requests_is_shadowed(
    operator: Operator, versions: list[Version], replies: Replies, engine: StubEngine, ask: Ask
) -> None:
    await set_shadow(operator, share=30)
    for _ in range(40):
        await ask(max_tokens=50)
    await results(operator, 1)
    num = sum(each.tenant_id == TRIAL_TENANT for each in replies.seen)
    assert 2 <= num <= 28


async def test_control_without_a_shadow_nothing_else_runs(
    operator: Operator, versions: list[Version], replies: Replies, engine: StubEngine, ask: Ask
) -> None:
    await set_shadow(operator)
    await operator.done("PUT", PROD, json={"version": "v1"})
    for _ in range(5):
        await ask(max_tokens=50)
    assert all(each.tenant_id != TRIAL_TENANT for each in replies.seen)
    assert (await operator.done("GET", f"{PROD}/shadow"))["version_id"] is None


async def test_a_version_that_no_engine_may_load_is_no_shadow(
    operator: Operator, versions: list[Version]
) -> None:
    await operator.done("DELETE", f"{BOT}/versions/v2")
    body = {"version": "v1", "shadow": {"version": "v2", "weight": 10}}
    refused = await operator.call("PUT", PROD, json=body)
    assert code(refused) == (409, "version_not_active")


async def test_a_deleted_shadow_ends_and_the_alias_goes_on(
    operator: Operator, versions: list[Version], replies: Replies, engine: StubEngine, ask: Ask
) -> None:
    await set_shadow(operator)
    await operator.done("DELETE", f"{BOT}/versions/v2", params={"erase": True})
    assert (await ask(max_tokens=50)).status_code == 200
    assert all(each.tenant_id != TRIAL_TENANT for each in replies.seen)


async def test_what_is_kept_of_a_comparison_has_no_word_in_it(
    operator: Operator,
    versions: list[Version],
    replies: Replies,
    engine: StubEngine,
    ask: Ask,
    context: AppContext,
) -> None:
    replies.texts = dict.fromkeys(replies.texts, "canary-of-the-answer")
    await set_shadow(operator)
    await ask(prompt="canary-of-the-prompt", max_tokens=50)
    await results(operator, 1)
    adapter = await operator.done("GET", BOT)
    (sample,) = await context.samples.read_shadows(adapter["id"], "prod")
    assert isinstance(sample, ShadowSample) and "canary" not in repr(sample)
