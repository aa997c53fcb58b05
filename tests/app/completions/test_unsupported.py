from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.completions.schemas import ChatCompletionBody, CompletionBody
from app.completions.unsupported import refuse_unsupported
from app.errors import BadRequestError

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> ChatCompletionBody:
    return ChatCompletionBody.model_validate({"model": "m", "messages": HI, **fields})


def text(**fields: Any) -> CompletionBody:
    return CompletionBody.model_validate({"model": "m", "prompt": "hi", **fields})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [TOOL]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x"}}),
        ("logprobs", True),
        ("top_logprobs", 5),
        ("logit_bias", {"1": 100}),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {}),
        ("moderation", {"model": "x"}),
        ("min_p", 0.1),
        ("repetition_penalty", 1.1),
        ("min_tokens", 3),
        ("ignore_eos", True),
        ("stop_token_ids", [1]),
        ("skip_special_tokens", False),
        ("include_stop_str_in_output", True),
        ("add_generation_prompt", False),
        ("continue_final_message", True),
        ("structured_outputs", {}),
        ("priority", 1),
    ],
)
def test_a_field_that_would_change_the_answer_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequestError) as caught:
        refuse_unsupported(chat(**{field: value}))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 2),
        ("echo", True),
        ("suffix", "end"),
        ("logprobs", 0),
        ("logprobs", 2),
        ("frequency_penalty", 1),
    ],
)
def test_a_field_of_text_completions_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequestError) as caught:
        refuse_unsupported(text(**{field: value}))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", field)


def test_values_that_ask_for_nothing_and_hints_are_accepted() -> None:
    refuse_unsupported(
        chat(
            tools=[],
            tool_choice="auto",
            response_format={"type": "text"},
            logprobs=False,
            logit_bias={},
            frequency_penalty=0.0,
            presence_penalty=None,
            modalities=["text"],
            repetition_penalty=1.0,
            audio=None,
            stream=True,
            stream_options={"include_usage": True, "include_obfuscation": False},
            user="u",
            safety_identifier="s",
            metadata={"k": "v"},
            store=True,
            service_tier="auto",
            verbosity="low",
            reasoning_effort="minimal",
            prompt_cache_key="k",
            prompt_cache_options={"mode": "implicit"},
            prompt_cache_retention="24h",
            prediction={"type": "content", "content": "x"},
            parallel_tool_calls=False,
        )
    )
    refuse_unsupported(text(best_of=1, echo=False, suffix="", logprobs=None))


def test_stream_options_without_a_stream_are_refused() -> None:
    with pytest.raises(BadRequestError) as caught:
        refuse_unsupported(chat(stream_options={"include_usage": True}))
    assert caught.value.param == "stream_options"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 2.1},
        {"temperature": -0.1},
        {"temperature": True},
        {"temperature": "1"},
        {"temperature": float("nan")},
        {"top_p": 1.1},
        {"top_p": float("inf")},
        {"top_k": -2},
        {"top_k": 1.5},
        {"seed": 2**63},
        {"seed": -(2**63) - 1},
        {"seed": True},
        {"n": 0},
        {"n": 9},
        {"max_tokens": 0},
        {"max_tokens": 2**31},
        {"max_completion_tokens": True},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"stop": ""},
        {"stop": [1]},
        {"stream": 1},
        {"stream": True, "stream_options": {"include_everything": True}},
        {"service_tier": "first"},
        {"queue_timeout": 0},
        {"metadata": {f"k{i}": "v" for i in range(17)}},
        {"metadata": {"k": "v" * 513}},
        {"user": "u" * 129},
        {"model": ""},
        {"model": "\ud800"},
        {"messages": []},
        {"messages": [{"role": "judge", "content": "x"}]},
        {"messages": [{"role": "user", "content": "\udfff"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"colour": "blue"},
    ],
)
def test_what_is_out_of_bounds_is_reported_under_the_name_that_was_sent(
    fields: dict[str, Any],
) -> None:
    with pytest.raises(ValidationError) as caught:
        chat(**fields)
    assert caught.value.errors()[0]["loc"][0] in fields


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])],
)
def test_a_prompt_has_four_forms(prompt: Any, prompts: Any) -> None:
    assert text(prompt=prompt).prompt == prompts


@pytest.mark.parametrize(
    "prompt", [None, [], [[]], 5, {}, [1, "a"], [["a"]], [True], [1.0], ["\ud800"], ["a"] * 129]
)
def test_a_prompt_of_any_other_form_is_refused_under_its_name(prompt: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        text(prompt=prompt)
    assert [error["loc"] for error in caught.value.errors()] == [("prompt",)]
