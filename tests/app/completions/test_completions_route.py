from __future__ import annotations

import json
from typing import Any

import httpx

from app.context import AppContext
from tests.builders.admissions import admit_ask, make_ask
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID

PATH = "/v1/completions"
BAD_FIELDS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"prompt": ""}, "invalid_value", "prompt"),
    ({"prompt": []}, "invalid_type", "prompt"),
    ({"prompt": [1, "a"]}, "invalid_type", "prompt"),
    ({"prompt": [260]}, "invalid_value", "prompt"),
    ({"prompt": "x" * 512}, "context_length_exceeded", None),
    ({"prompt": "x" * 9000}, "context_length_exceeded", "prompt"),
    ({"messages": []}, "unknown_parameter", "messages"),
    ({"max_completion_tokens": 3}, "unknown_parameter", "max_completion_tokens"),
    ({"echo": True}, "unsupported_parameter", "echo"),
    ({"logprobs": 1}, "unsupported_parameter", "logprobs"),
    ({"suffix": "x"}, "unsupported_parameter", "suffix"),
    ({"best_of": 2}, "unsupported_parameter", "best_of"),
]


def body(prompt: Any = "Say hello. ", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "prompt": prompt, **fields}


async def test_a_text_completion_has_openais_shape_and_sixteen_tokens(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str
) -> None:
    with StubEngine(redis_url) as engine:  # which echoes the prompt's tokens, round and round
        response = await api.post(PATH, json=body(), headers=acme.headers)
    answer = response.json()
    assert response.status_code == 200
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer.pop("system_fingerprint").startswith("fp_")
    usage = answer.pop("usage")
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (11, 16)
    assert answer == {
        "object": "text_completion",
        "model": MODEL_ID,
        "choices": [
            {"index": 0, "text": "Say hello. Say h", "finish_reason": "length", "logprobs": None}
        ],
    }
    assert response.headers["openai-organization"] == "acme"
    assert engine.requests[0].sampling.max_tokens == 16


async def test_choices_of_several_prompts_are_prompt_major_and_run_at_once(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str, context: AppContext
) -> None:
    tokens = [context.tokenizer.encode_prompt(text) for text in ("abc", "xyz")]
    with StubEngine(redis_url) as engine:
        for prompt in (["abc", "xyz"], tokens):
            fields = body(prompt, n=2, max_tokens=3, seed=1)
            answer = (await api.post(PATH, json=fields, headers=acme.headers)).json()
            texts = [(choice["index"], choice["text"]) for choice in answer["choices"]]
            assert texts == [(0, "abc"), (1, "abc"), (2, "xyz"), (3, "xyz")]
            usage = answer["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (6, 12)
    seeds = {tuple(r.prompt_token_ids): [] for r in engine.requests}
    for request in engine.requests[:4]:
        seeds[tuple(request.prompt_token_ids)].append(request.sampling.seed)
    assert len({tuple(sorted(found)) for found in seeds.values()}) == 1


async def test_one_prompt_of_tokens_is_one_prompt(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str, context: AppContext
) -> None:
    ids = context.tokenizer.encode_prompt("abc")
    with StubEngine(redis_url):
        fields = body(ids, max_tokens=4)
        answer = (await api.post(PATH, json=fields, headers=acme.headers)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["abca"]


async def test_the_default_length_is_cut_to_what_the_context_leaves(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str
) -> None:
    with StubEngine(redis_url) as engine:
        await api.post(PATH, json=body("x" * 509), headers=acme.headers)
    assert engine.requests[0].sampling.max_tokens == 3


async def test_a_stream_of_text_ends_with_the_reason_then_usage(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    fields = body(stream=True, stream_options={"include_usage": True})
    response = await api.post(PATH, json=fields, headers=acme.headers)
    *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[0]["choices"][0]["finish_reason"] is None
    texts = [chunk["choices"][0]["text"] for chunk in chunks[:-1]]
    assert "".join(texts) == "Hello there!"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 13
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


async def test_a_bad_request_is_a_400_that_names_the_field(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    for fields, code, param in BAD_FIELDS:
        response = await api.post(PATH, json=body(**fields), headers=acme.headers)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, code, param), fields
    assert engine.requests == []


async def test_no_key_is_a_401_and_anothers_model_the_same_404_as_none(
    api: httpx.AsyncClient, acme: Tenant, globex: Tenant, engine: StubEngine
) -> None:
    assert (await api.post(PATH, json=body())).status_code == 401
    answers = []
    for model in ("globex-only", "globex-onlx"):
        fields = {**body(), "model": model}
        answers.append(await api.post(PATH, json=fields, headers=acme.headers))
    foreign, absent = answers
    assert foreign.status_code == absent.status_code == 404
    assert foreign.content.replace(b"only", b"onlx") == absent.content


async def test_a_tenant_over_its_concurrency_is_refused_whole(
    api: httpx.AsyncClient, operator: Operator, engine: StubEngine, context: AppContext
) -> None:
    tenant = await operator.new_tenant("initech", limits={"concurrency": 2})
    await admit_ask(context.admission, make_ask(context.admission, "other", tenant_id=tenant.id))
    response = await api.post(PATH, json=body(["a", "b"]), headers=tenant.headers)
    assert response.status_code == 429
    assert context.admission.num_held == 1  # the other's
    assert engine.requests == []
