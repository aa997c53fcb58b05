"""A conversation is rendered with the template of the version that it runs on, and no other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from app.context import AppContext
from app.settings import Settings
from engine.messages import TRIAL_TENANT
from lora.store import CHAT_TEMPLATE_FILE
from tests.builders.chat_templates import SWITCH
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually, until
from tests.corpus.templates.conftest import BOT, Ask, Push, Read

CHATML = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
SPELLED = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
SHOUTED = "{{ messages[-1].content | upper }}{{ eos_token }}{{ mood }}!"
# What `SWITCH` is told to do, and what is said of it.
WRONG = {
    "refuse": "refuses this conversation: I do not like it",
    "fail": "failed on this conversation",
    "spin": "takes more time than it may",
    "hoard": "takes more memory than it may",
    "babble": "makes more text of this conversation than",
}


def stored_templates(settings: Settings) -> list[Path]:
    return [*Path(settings.adapter_store).rglob(CHAT_TEMPLATE_FILE)]


async def test_each_version_has_its_own_template_and_the_base_its_own(
    push: Push, ask: Ask, engine: StubEngine, read: Read
) -> None:
    await push(None, seed=1)
    await push(SPELLED, seed=2)
    await push(SHOUTED, seed=3)
    asked = {
        MODEL_ID: CHATML,
        "bot": CHATML,
        "bot@v1": CHATML,
        "bot@v2": "user=Hi;",
        "bot@v3": "HI<|im_end|>!",
    }
    for model, prompt in asked.items():
        assert (await ask(model=model)).status_code == 200
        assert read(engine.requests[-1]) == prompt
    await ask(model="bot@v3", chat_template_kwargs={"mood": "calm"})
    assert read(engine.requests[-1]) == "HI<|im_end|>calm!"


async def test_an_alias_that_moves_takes_the_template_along(
    operator: Operator, push: Push, ask: Ask, redis_url: str, read: Read
) -> None:
    await push(SPELLED, seed=1)
    await push(SHOUTED, seed=2)
    with StubEngine(redis_url) as engine:
        await ask()
        assert read(engine.requests[-1]) == "user=Hi;"
    await operator.done("PUT", f"{BOT}/aliases/prod", json={"version": "v2"})
    with StubEngine(redis_url) as engine:
        await ask()
        assert read(engine.requests[-1]) == "HI<|im_end|>!"


async def test_what_a_template_does_wrong_is_a_400_that_says_whose_it_is(
    push: Push, ask: Ask, engine: StubEngine, read: Read
) -> None:
    await push(SWITCH)
    for content, said in WRONG.items():
        response, other = await asyncio.gather(ask(content), ask(model=MODEL_ID))
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "chat_template_failed"), content
        assert error["message"].startswith(f"The adapter's own chat template {said}")
        assert other.status_code == 200  # what else is asked is served meanwhile
        assert (await ask("hello")).status_code == 200  # the control: by the same template
        assert read(engine.requests[-1]) == "[hello]"


async def test_a_text_completion_meets_no_template(
    api: httpx.AsyncClient, acme: Tenant, push: Push, engine: StubEngine, read: Read
) -> None:
    await push("{{ messages[0].content }}")
    body = {"model": "bot", "prompt": "as it is", "max_tokens": 1}
    response = await api.post("/v1/completions", json=body, headers=acme.headers)
    assert response.status_code == 200 and read(engine.requests[-1]) == "as it is"


async def test_a_template_that_the_store_lost_is_a_503_and_one_that_is_known_is_rendered(
    context: AppContext,
    settings: Settings,
    push: Push,
    ask: Ask,
    engine: StubEngine,
    read: Read,
) -> None:
    await push(SPELLED, seed=1)
    await push(SHOUTED, seed=2)
    await ask(model="bot@v1")
    stored = stored_templates(settings)
    assert len(stored) == 2
    for path in stored:
        path.write_text("{{ 'of somebody else' }}")
    damaged = await ask(model="bot@v2")
    assert (damaged.status_code, damaged.json()["error"]["code"]) == (503, "adapter_corrupt")
    for path in stored:
        path.unlink()
    lost = await ask(model="bot@v2")
    assert (lost.status_code, lost.json()["error"]["code"]) == (503, "adapter_missing")
    assert (await ask(model="bot@v1")).status_code == 200
    assert read(engine.requests[-1]) == "user=Hi;"


@pytest.mark.parametrize(("first", "second"), [(SPELLED, SHOUTED), (SPELLED, None)])
async def test_a_shadow_reads_the_conversation_through_its_own_template(
    operator: Operator,
    push: Push,
    ask: Ask,
    engine: StubEngine,
    read: Read,
    first: str | None,
    second: str | None,
) -> None:
    prompts = {SPELLED: "user=Hi;", SHOUTED: "HI<|im_end|>!", None: CHATML}
    await push(first, seed=1)
    await push(second, seed=2)
    body = {"version": "v1", "shadow": {"version": "v2", "weight": 100}}
    await operator.done("PUT", f"{BOT}/aliases/prod", json=body)
    assert (await ask()).status_code == 200
    await until(lambda: len(engine.requests) == 2)
    seen = {request.tenant_id == TRIAL_TENANT: read(request) for request in engine.requests}
    assert seen == {False: prompts[first], True: prompts[second]}


async def test_a_shadow_whose_template_fails_is_an_error_of_the_shadow_alone(
    operator: Operator, push: Push, ask: Ask, engine: StubEngine
) -> None:
    await push(SPELLED, seed=1)
    await push(SWITCH, seed=2)
    body = {"version": "v1", "shadow": {"version": "v2", "weight": 100}}
    await operator.done("PUT", f"{BOT}/aliases/prod", json=body)
    assert (await ask("fail")).status_code == 200

    async def is_counted() -> bool:
        found = await operator.done("GET", f"{BOT}/aliases/prod/shadow")
        return bool(found["errors"] == 1)

    await eventually(is_counted)


async def test_a_conversation_that_a_versions_template_fails_on_is_an_error_of_that_version(
    operator: Operator, context: AppContext, push: Push, ask: Ask, redis_url: str
) -> None:
    """For a rollout's gates: the other version answers the same conversation."""
    first, second = await push(None, seed=1), await push(SWITCH, seed=2)
    targets = [{"version": "v1", "weight": 50}, {"version": "v2", "weight": 50}]
    moved = await operator.done("PUT", f"{BOT}/aliases/prod", json={"targets": targets})
    with StubEngine(redis_url):
        answers = [await ask("fail") for _ in range(20)]
        assert (await ask("fail", model="bot@v2")).status_code == 400  # of no alias: no sample

    async def are_there() -> bool:
        return len(await context.samples.read(moved["adapter_id"], "prod")) == len(answers)

    await eventually(are_there)
    samples = await context.samples.read(moved["adapter_id"], "prod")
    errors = {each.version_id: each.is_error for each in samples}
    assert errors == {first["id"]: False, second["id"]: True}
    num_failed = [answer.status_code for answer in answers].count(400)
    assert sum(each.is_error for each in samples) == num_failed > 0


async def test_control_what_a_client_does_wrong_is_no_error_of_a_version(
    operator: Operator, context: AppContext, push: Push, ask: Ask, redis_url: str
) -> None:
    await push(None, seed=1)
    await push(SPELLED, seed=2)
    targets = [{"version": "v1", "weight": 50}, {"version": "v2", "weight": 50}]
    moved = await operator.done("PUT", f"{BOT}/aliases/prod", json={"targets": targets})
    for _ in range(8):
        assert (await ask("x" * 100_000)).status_code == 400
    assert await context.samples.read(moved["adapter_id"], "prod") == []
