from __future__ import annotations

import json
import time
from typing import Any

import httpx

from app.context import AppContext
from engine.messages import EngineRequest
from tests.app.completions.conftest import Say
from tests.app.completions.test_chat_route import PATH, body, post
from tests.builders.operator import Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until

SMILEY = "\N{SLIGHTLY SMILING FACE}"


def events(response: httpx.Response) -> list[Any]:
    """The JSON of every event; the last must be [DONE]."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert data.pop() == "[DONE]"
    return [json.loads(event) for event in data]


def joined(chunks: list[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(c["delta"].get("content", "") for c in choices if c["index"] == index)


async def test_a_stream_says_the_role_then_the_text_then_the_reason(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    response = await post(api, acme, body("support-bot", stream=True))
    chunks = events(response)
    assert chunks[0]["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "finish_reason": None,
            "logprobs": None,
        }
    ]
    assert joined(chunks) == "I am an adapter."
    last = {"index": 0, "delta": {}, "finish_reason": "stop", "logprobs": None}
    assert chunks[-1]["choices"] == [last]
    assert len({(c["id"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all("usage" not in chunk for chunk in chunks)
    headers = response.headers
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-adapter-version"] == "v1"
    assert headers["x-request-id"] == headers["request-id"]
    assert headers["openai-organization"] == "acme"
    assert "content-length" not in headers


async def test_usage_comes_once_alone_and_last_and_equals_the_whole_answers(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    options = {"include_usage": True, "include_obfuscation": False}
    chunks = events(await post(api, acme, body(stream=True, stream_options=options)))
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == (await post(api, acme, body())).json()["usage"]


async def test_stops_and_broken_characters_stream_as_the_whole_answer_reads(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str, say: Say
) -> None:
    reply = say(f"a{SMILEY}b own{SMILEY} fox and more")
    for stop, expected in (["own"], f"a{SMILEY}b "), ([f"n{SMILEY} f"], f"a{SMILEY}b ow"):
        for per_step in (1, 3, 100):
            with StubEngine(redis_url, reply=lambda _: reply, tokens_per_step=per_step):
                whole = (await post(api, acme, body(stop=stop))).json()
                options = {"include_usage": True}
                fields = {"stop": stop, "stream": True, "stream_options": options}
                chunks = events(await post(api, acme, body(**fields)))
            assert whole["choices"][0]["message"]["content"] == joined(chunks) == expected
            assert whole["usage"] == chunks[-1]["usage"]
            assert "\ufffd" not in joined(chunks)


async def test_roles_of_several_choices_come_first_and_in_order(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str, say: Say
) -> None:
    def reply(request: EngineRequest) -> list[int]:
        return say(f"seed {request.sampling.seed}")

    with StubEngine(redis_url, reply=reply):
        chunks = events(await post(api, acme, body(stream=True, n=3, seed=5)))
        whole = (await post(api, acme, body(n=3, seed=5))).json()
    assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    assert all(chunk["choices"][0]["delta"]["role"] == "assistant" for chunk in chunks[:3])
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [joined(chunks, index) for index in range(3)] == texts


async def test_a_stream_whose_first_token_is_late_begins_without_it_and_fails_in_an_event(
    base_url: str, acme: Tenant, engine: StubEngine
) -> None:
    engine.pause()
    began_at = time.monotonic()
    async with (
        httpx.AsyncClient(base_url=base_url) as client,
        client.stream(
            "POST", PATH, json=body(stream=True), headers=acme.headers, timeout=20
        ) as response,
    ):
        assert 2.0 <= time.monotonic() - began_at < 4.0
        assert response.status_code == 200
        lines = response.aiter_lines()
        assert '"role":"assistant"' in await anext(lines)
        engine.kill()
        last = [line async for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_lost"


async def test_an_engine_that_dies_in_mid_stream_is_an_error_event_and_the_end(
    base_url: str, acme: Tenant, redis_url: str, say: Say, context: AppContext
) -> None:
    reply = say("a long answer" * 20)
    engine = StubEngine(redis_url, reply=lambda request: reply, step_s=0.02)
    engine.start()
    async with (
        httpx.AsyncClient(base_url=base_url) as client,
        client.stream(
            "POST", PATH, json=body(stream=True), headers=acme.headers, timeout=20
        ) as response,
    ):
        lines = response.aiter_lines()
        assert response.status_code == 200
        await anext(lines)
        engine.kill()
        last = [line async for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_lost"
    await until(lambda: context.admission.num_held == 0)
