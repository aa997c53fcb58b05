from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import redis

from app.completions.turnstile import REMEMBERED_S
from app.context import AppContext
from engine.messages import EngineError, EngineRequest
from engine.transport import keys
from tests.app.completions.conftest import IM_END, Say
from tests.builders.admissions import admit_ask, make_ask
from tests.builders.operator import Operator, Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import until

PATH = "/v1/chat/completions"


def body(model: str = MODEL_ID, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], **fields}


async def post(
    api: httpx.AsyncClient, tenant: Tenant, json: Any, path: str = PATH
) -> httpx.Response:
    return await api.post(path, json=json, headers=tenant.headers)


async def test_a_base_answer_has_openais_shape(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    response = await post(api, acme, body(metadata={"run": "7"}))
    answer = response.json()
    assert response.status_code == 200
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    fingerprint = answer.pop("system_fingerprint")
    assert fingerprint.startswith("fp_") and fingerprint.count("_") == 1
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    num_prompt = len(engine.requests[0].prompt_token_ids)
    assert num_prompt == len(prompt) - len("<|im_start|>" * 2 + "<|im_end|>") + 3
    assert answer == {
        "object": "chat.completion",
        "model": MODEL_ID,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello there!",
                    "refusal": None,
                    "annotations": [],
                },
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": 13,
            "total_tokens": num_prompt + 13,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
        "service_tier": "default",
        "metadata": {"run": "7"},
    }
    headers = response.headers
    assert headers["x-request-id"] == headers["request-id"]
    assert headers["openai-version"] == "2020-10-01"
    assert headers["openai-organization"] == "acme"
    assert int(headers["openai-processing-ms"]) >= 0
    assert "x-adapter-version" not in headers
    assert "x-adapter-digest" not in headers


async def test_an_adapters_answer_names_its_version_and_reaches_the_engine_pinned(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    for model in ("support-bot", "support-bot:prod", "support-bot@v1"):
        response = await post(api, acme, body(model))
        answer = response.json()
        adapter = engine.requests[-1].adapter
        assert adapter is not None
        assert (adapter.tenant_id, answer["model"]) == (acme.id, model)
        assert response.headers["x-adapter-version"] == "v1"
        assert response.headers["x-adapter-digest"] == adapter.digest
        digits = adapter.digest.removeprefix("sha256:")[:12]
        assert answer["system_fingerprint"].endswith(f"_{digits}")
        assert answer["choices"][0]["message"]["content"] == "I am an adapter."


async def test_the_tenants_own_path_serves_the_same_and_anothers_is_not_found(
    api: httpx.AsyncClient, acme: Tenant, globex: Tenant, engine: StubEngine
) -> None:
    for own in (acme.slug, acme.id):
        assert (await post(api, acme, body("support-bot"), f"/t/{own}{PATH}")).status_code == 200
    foreign = await post(api, acme, body("support-bot"), f"/t/{globex.slug}{PATH}")
    absent = await post(api, acme, body("support-bot"), f"/t/nobody{PATH}")
    assert (foreign.status_code, foreign.content) == (404, absent.content)


async def test_another_tenants_model_is_the_same_404_as_none_at_all(
    api: httpx.AsyncClient, acme: Tenant, globex: Tenant, engine: StubEngine
) -> None:
    foreign = await post(api, acme, body("globex-only"))
    absent = await post(api, acme, body("globex-onlx"))
    assert foreign.status_code == absent.status_code == 404
    assert foreign.content.replace(b"globex-only", b"globex-onlx") == absent.content
    assert foreign.json()["error"]["code"] == "model_not_found"
    assert engine.requests == []
    assert (await post(api, globex, body("globex-only"))).status_code == 200  # its owner's key


BAD_FIELDS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"colour": "blue"}, "unknown_parameter", "colour"),
    ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
    ({"temperature": 3}, "invalid_value", "temperature"),
    ({"temperature": True}, "invalid_type", "temperature"),
    ({"n": 9}, "invalid_value", "n"),
    ({"stop": ["a"] * 5}, "invalid_value", "stop"),
    ({"messages": None}, "invalid_type", "messages"),
    ({"messages": [{"role": "judge"}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user", "content": 1}]}, "invalid_type", "messages[0].content"),
    ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
    ({"stream_options": {}}, "invalid_value", "stream_options"),
    ({"max_tokens": 512}, "context_length_exceeded", None),
]
ENGINE_FAILURES = {
    "adapter_corrupt": (503, "adapter_corrupt"),
    "adapter_load_failed": (503, "adapter_load_failed"),
    "adapter_missing": (503, "adapter_missing"),
    "adapter_too_large": (400, "adapter_too_large"),
    "engine_lost": (503, "engine_lost"),
    "invalid_prompt": (400, "invalid_prompt"),
    "queue_timeout": (408, "queue_timeout"),
    "request_too_large": (400, "context_length_exceeded"),
    "nonfinite_logits": (500, "nonfinite_logits"),
    "request_poisoned": (500, "request_poisoned"),
    "out_of_sorts": (500, "internal_error"),
}
BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "top_p": Infinity}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "\\udfff", "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "\\ud800": 1}',
    b'{"model": "m", "seed": ' + b"9" * 5000 + b"}",
    b'{"messages": ' + b"[" * 100_000,
]


async def test_a_bad_request_is_a_400_that_names_the_field(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    for fields, code, param in BAD_FIELDS:
        response = await post(api, acme, body(**fields))
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, code, param), fields
        assert error["type"] == "invalid_request_error"
    assert engine.requests == []


async def test_a_body_that_is_no_json_of_ours_is_a_400(
    api: httpx.AsyncClient, acme: Tenant
) -> None:
    headers = {**acme.headers, "content-type": "application/json"}
    for content in BAD_BODIES:
        response = await api.post(PATH, content=content, headers=headers)
        assert response.status_code == 400, content[:80]
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_name_that_no_database_takes_is_not_found(
    api: httpx.AsyncClient, acme: Tenant
) -> None:
    assert (await post(api, acme, body("support-bot\x00"))).status_code == 404


async def test_no_key_or_a_wrong_one_is_a_401_before_the_body_is_looked_at(
    api: httpx.AsyncClient, acme: Tenant
) -> None:
    wrong = {"authorization": "Bearer tf_wrong"}
    for headers in ({}, wrong):
        response = await api.post(PATH, json={"colour": 1}, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_key_without_the_scope_is_a_403(api: httpx.AsyncClient, operator: Operator) -> None:
    tenant = await operator.new_tenant("initech", scopes=["adapters:write"])
    assert (await post(api, tenant, body())).status_code == 403


async def test_a_tenant_over_its_concurrency_is_told_when_to_come_back(
    api: httpx.AsyncClient, operator: Operator, engine: StubEngine, context: AppContext
) -> None:
    tenant = await operator.new_tenant("initech", limits={"concurrency": 1})
    other = make_ask(context.admission, "other", tenant_id=tenant.id)
    await admit_ask(context.admission, other)
    for stream in (False, True):
        response = await post(api, tenant, body(stream=stream))
        assert (response.status_code, response.json()["error"]["type"]) == (429, "concurrency")
        assert response.headers["retry-after"] == "1"
    await context.admission.release(other, is_accepted=False)
    assert (await post(api, tenant, body())).status_code == 200
    assert context.admission.num_held == 0


async def test_a_tenant_whose_queue_is_full_by_default_is_told_when_to_come_back(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str, say: Say, context: AppContext
) -> None:
    depth = context.settings.tenant_queue_depth
    assert depth < context.settings.tenant_concurrency
    waiting = [asyncio.create_task(post(api, acme, body())) for _ in range(depth)]
    with redis.Redis.from_url(redis_url) as server:
        await until(lambda: server.zcard(keys.queue(acme.id)) == depth, timeout_s=30)
    responses = []
    for stream in (False, True):
        response = await post(api, acme, body(stream=stream))
        responses.append(response)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["type"]) == (
            429,
            "queue_full",
            "requests",
        )
        assert 1 <= int(response.headers["retry-after"]) <= 60
    # What it was told counts for the next as well, before the body is read.
    again = await api.post(PATH, content=b"{", headers=acme.headers)
    repeated = again.json()["error"]
    assert (again.status_code, repeated["code"]) == (429, "queue_full")
    assert repeated["limit"] == error["limit"]
    assert repeated["decision_of"] in [response.headers["x-request-id"] for response in responses]
    await asyncio.sleep(REMEMBERED_S)
    reply = say("late")
    with StubEngine(redis_url, reply=lambda request: reply):
        statuses = [(await response).status_code for response in waiting]
        assert statuses == [200] * depth
        assert (await post(api, acme, body())).status_code == 200
    assert context.admission.num_held == 0


async def test_more_choices_than_may_ever_run_at_once_are_a_400_and_not_a_429(
    api: httpx.AsyncClient, operator: Operator, engine: StubEngine
) -> None:
    tenant = await operator.new_tenant("initech", limits={"concurrency": 2})
    assert (await post(api, tenant, body(n=2))).status_code == 200
    assert (await post(api, tenant, body(n=3))).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_failure_before_the_first_token_has_a_status_of_its_own(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str, context: AppContext, stream: bool
) -> None:
    failures = iter(ENGINE_FAILURES)

    def fail(request: EngineRequest) -> EngineError:
        return EngineError(code=next(failures), message="The secret reason.")

    with StubEngine(redis_url, reply=fail):
        for status, public_code in ENGINE_FAILURES.values():
            response = await post(api, acme, body(stream=stream))
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (status, public_code)
            assert ("secret" in response.text) == (public_code != "internal_error")
            assert ("retry-after" in response.headers) == (status == 503)
    assert context.admission.num_held == 0


async def test_the_sampling_knobs_and_the_rest_of_the_context_reach_the_engine(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    await post(api, acme, body(temperature=0.5, top_p=0.9, top_k=7, seed=-1))
    request = engine.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert sampling.seed == 2**63 - 1
    assert sampling.max_tokens == 512 - len(request.prompt_token_ids)
    assert sampling.stop_token_ids == (IM_END,)


async def test_the_newer_name_of_max_tokens_wins(
    api: httpx.AsyncClient, acme: Tenant, engine: StubEngine
) -> None:
    response = await post(api, acme, body(max_tokens=9, max_completion_tokens=5))
    choice = response.json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", "length")
    assert response.json()["usage"]["completion_tokens"] == 5


async def test_a_stop_string_ends_the_text_and_the_engines_work(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str, say: Say, context: AppContext
) -> None:
    reply = say("one two three four " * 20)
    with StubEngine(redis_url, reply=lambda request: reply, step_s=0.01) as engine:
        response = await post(api, acme, body(stop=["three", "zzz"]))
        answer = response.json()
        assert answer["choices"][0]["message"]["content"] == "one two "
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == len("one two three")
        await until(lambda: len(engine.aborted) == 1)


async def test_choices_differ_in_their_seed_alone_and_a_prompt_counts_once(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str, say: Say
) -> None:
    def reply(request: EngineRequest) -> list[int]:
        return say(f"seed {request.sampling.seed}")

    with StubEngine(redis_url, reply=reply) as engine:
        three = (await post(api, acme, body(n=3, seed=11))).json()
        one = (await post(api, acme, body(seed=11))).json()
    texts = [choice["message"]["content"] for choice in three["choices"]]
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == one["choices"][0]["message"]["content"] == "seed 11"
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == sum(len(text) + 1 for text in texts)
    assert len({request.request_id for request in engine.requests}) == 4


async def test_without_an_engine_nothing_is_lost_and_one_that_comes_late_answers(
    api: httpx.AsyncClient, acme: Tenant, redis_url: str, say: Say
) -> None:
    waiting = asyncio.create_task(post(api, acme, body()))
    reply = say("late")
    with StubEngine(redis_url, reply=lambda request: reply):
        response = await waiting
    assert response.json()["choices"][0]["message"]["content"] == "late"
