"""An operator asks a version before anybody else does: billed to nobody, remembered by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from app.context import AppContext
from app.db import Database
from engine.messages import TRIAL_TENANT, EngineError, EngineRequest, ServiceTier
from lora.base_spec import BaseSpec
from lora.store import CHAT_TEMPLATE_FILE
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.corpus.lifecycle.conftest import BOT, Version, code

V1, V2 = f"{BOT}/versions/v1", f"{BOT}/versions/v2"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


class Replies:
    """What each digest says; what the engine was asked."""

    def __init__(self, context: AppContext) -> None:
        self.tokenizer = context.tokenizer
        self.said: dict[str, str] = {}
        self.seen: list[EngineRequest] = []

    def __call__(self, request: EngineRequest) -> list[int] | EngineError:
        self.seen.append(request)
        assert request.adapter is not None
        said = self.said.get(request.adapter.digest, "as ever")
        if said == "broken":
            return EngineError(code="nonfinite_logits", message="broken")
        if said == "away":
            return EngineError(code="engine_lost", message="away")
        return self.tokenizer.encode_prompt(said)

    @property
    def asked(self) -> str:
        return str(self.tokenizer.model.decode(self.seen[-1].prompt_token_ids))


@pytest.fixture
def replies(context: AppContext) -> Replies:
    return Replies(context)


@pytest.fixture
def engine(redis_url: str, replies: Replies) -> Iterator[StubEngine]:
    with StubEngine(redis_url, reply=replies, tokens_per_step=64) as running:
        yield running


async def test_a_version_is_probed_by_its_own_adapter_and_nobody_is_billed(
    operator: Operator,
    versions: list[Version],
    engine: StubEngine,
    replies: Replies,
    owner: Database,
) -> None:
    replies.said[versions[1]["digest"]] = "I am the second."
    body = {"prompt": "canary-of-a-probe", "max_tokens": 32}
    probed = await operator.done("POST", f"{V2}/probe", json=body)
    assert (probed["text"], probed["finish_reason"]) == ("I am the second.", "stop")
    assert (probed["digest"], probed["error"]) == (versions[1]["digest"], None)
    assert probed["completion_tokens"] == len("I am the second.")
    (request,) = replies.seen
    assert request.adapter is not None and request.adapter.digest == versions[1]["digest"]
    assert (request.tenant_id, request.service_tier) == (TRIAL_TENANT, ServiceTier.FLEX)
    async with owner.session() as session:
        assert await session.scalar(text("SELECT count(*) FROM requests")) == 0
        events = text("SELECT json_agg(e)::text FROM audit_events e WHERE action LIKE '%probed'")
        told = str(await session.scalar(events))
    assert versions[1]["digest"] in told and "canary" not in told and "second" not in told


async def test_a_conversation_goes_through_the_versions_own_template(
    operator: Operator,
    acme: Tenant,
    engine: StubEngine,
    replies: Replies,
    tiny_base: BaseSpec,
) -> None:
    files = adapter_files(tiny_base, rank=1)
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    await operator.push("acme", "bot", files)
    await operator.push("acme", "bot", {**files, CHAT_TEMPLATE_FILE: TEMPLATE.encode()})
    asked = []
    for path in (V1, V2):
        await operator.done("POST", f"{path}/probe", json=body)
        asked.append(replies.asked)
    assert asked[1] == "<user>Hello" and asked[0] != asked[1]


async def test_what_is_the_matter_with_a_version_is_told_and_an_engines_own_trouble_is_503(
    operator: Operator, versions: list[Version], engine: StubEngine, replies: Replies
) -> None:
    digest = versions[1]["digest"]
    replies.said[digest] = "broken"
    probed = await operator.done("POST", f"{V2}/probe", json={"prompt": "x"})
    assert (probed["text"], probed["error"]) == (None, "nonfinite_logits")
    replies.said[digest] = "away"
    refused = await operator.call("POST", f"{V2}/probe", json={"prompt": "x"})
    assert code(refused) == (503, "dependency_unavailable")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "invalid_value"),
    ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "invalid_value"),
    ({"prompt": "x", "max_tokens": 513}, "invalid_value"),
    ({"prompt": "x" * 600}, "context_length_exceeded"),
]


async def test_what_cannot_be_asked_and_what_no_engine_may_load_is_refused(
    operator: Operator, versions: list[Version]
) -> None:
    for body, expected in REFUSED:
        assert code(await operator.call("POST", f"{V2}/probe", json=body)) == (400, expected)
    await operator.done("DELETE", V2)
    refused = await operator.call("POST", f"{V2}/probe", json={"prompt": "x"})
    assert code(refused) == (409, "version_not_active")
