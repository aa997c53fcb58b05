"""The official SDK, unmodified, against a real server: what a tenant's developer runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.builders.operator import Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def client(base_url: str, acme: Tenant) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key=acme.secret, max_retries=0) as opened:
        yield opened


@contextmanager
def sync_client(base_url: str, tenant: Tenant) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{base_url}/v1", api_key=tenant.secret, max_retries=0) as opened:
        yield opened


async def test_chat_whole_and_streamed(client: AsyncOpenAI, engine: StubEngine) -> None:
    whole = await client.chat.completions.create(
        model="support-bot", messages=HI, seed=7, extra_body={"top_k": 5}
    )
    assert whole.choices[0].message.content == "I am an adapter."
    assert whole.usage is not None and whole.usage.completion_tokens == 17
    assert whole._request_id is not None and whole._request_id.startswith("req_")
    assert engine.requests[0].sampling.top_k == 5
    stream = await client.chat.completions.create(
        model="support-bot", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "I am an adapter."
    assert chunks[-1].usage == whole.usage


async def test_the_sdks_own_accumulator_ends_with_the_whole_answer(
    client: AsyncOpenAI, engine: StubEngine
) -> None:
    async with client.chat.completions.stream(
        model=MODEL_ID, messages=HI, n=2, stream_options={"include_usage": True}
    ) as stream:
        final = await stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["Hello there!"] * 2
    assert [choice.finish_reason for choice in final.choices] == ["stop", "stop"]
    assert final.usage is not None and final.usage.completion_tokens == 26


async def test_text_completions_whole_and_streamed(client: AsyncOpenAI, engine: StubEngine) -> None:
    whole = await client.completions.create(model=MODEL_ID, prompt=["a", "b"], stop="there")
    assert [choice.text for choice in whole.choices] == ["Hello ", "Hello "]
    stream = await client.completions.create(
        model=MODEL_ID, prompt="a", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello there!"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 13


async def test_models_are_listed_and_found_by_any_name(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL_ID, "support-bot"]
    for name in (MODEL_ID, "support-bot", "support-bot:prod", "support-bot@v1"):
        assert (await client.models.retrieve(name)).id == name
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("someone/else@v1")


async def test_errors_are_the_sdks_own_classes(
    client: AsyncOpenAI, base_url: str, engine: StubEngine
) -> None:
    with pytest.raises(openai.NotFoundError) as absent:
        await client.chat.completions.create(model="nothing", messages=HI)
    assert (absent.value.code, absent.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as long:
        await client.chat.completions.create(model=MODEL_ID, messages=HI, max_tokens=10_000)
    assert long.value.code == "context_length_exceeded"
    assert long.value.request_id is not None
    stranger = client.with_options(api_key="tf_wrong")
    with pytest.raises(openai.AuthenticationError):
        await stranger.chat.completions.create(model=MODEL_ID, messages=HI)


async def test_the_synchronous_client_whole_and_streamed(
    base_url: str, acme: Tenant, engine: StubEngine
) -> None:
    def talk() -> tuple[str | None, str, list[str]]:
        with sync_client(base_url, acme) as client:
            whole = client.chat.completions.create(model="support-bot", messages=HI)
            stream = client.chat.completions.create(model="support-bot", messages=HI, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return whole.choices[0].message.content, text, [m.id for m in client.models.list()]

    whole, streamed, models = await asyncio.to_thread(talk)
    assert whole == streamed == "I am an adapter."
    assert models == [MODEL_ID, "support-bot"]


async def test_the_tenants_own_path_is_a_base_url(
    base_url: str, acme: Tenant, engine: StubEngine
) -> None:
    async with AsyncOpenAI(base_url=f"{base_url}/t/acme/v1", api_key=acme.secret) as client:
        answer = await client.chat.completions.create(model="support-bot", messages=HI)
    assert answer.choices[0].message.content == "I am an adapter."


async def test_two_tenants_call_one_name_at_once_and_each_reaches_its_own_adapter(
    base_url: str, acme: Tenant, globex: Tenant, engine: StubEngine
) -> None:
    digests: dict[str, set[str]] = {}

    async def call(tenant: Tenant) -> None:
        async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key=tenant.secret) as client:
            raw = await client.chat.completions.with_raw_response.create(
                model="support-bot", messages=HI
            )
            digests.setdefault(tenant.slug, set()).add(raw.headers["x-adapter-digest"])

    await asyncio.gather(*(call(tenant) for tenant in (acme, globex) * 8))
    assert {slug: len(found) for slug, found in digests.items()} == {"acme": 1, "globex": 1}
    assert digests["acme"] != digests["globex"]
    owners = [(r.tenant_id, r.adapter.digest) for r in engine.requests if r.adapter is not None]
    assert set(owners) == {
        (acme.id, *digests["acme"]),
        (globex.id, *digests["globex"]),
    }
