from __future__ import annotations

import asyncio
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import ValidationError

from app.completions.chat_template import ChatTemplate, Message
from app.completions.fields import MAX_VARIABLES_CHARS, MAX_VARIABLES_DEPTH
from app.completions.prompting import Prompter
from app.completions.schemas import ChatCompletionBody
from app.completions.tokenizer import Tokenizer
from app.error_handlers import from_validation
from app.errors import BadRequestError

SPELL_OUT = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"


@pytest.fixture
def prompter(tokenizer: Tokenizer) -> Prompter:
    return Prompter(tokenizer, vocab_size=49_152, max_model_len=64)


def with_template(prompter: Prompter, source: str | None) -> Prompter:
    template = None if source is None else ChatTemplate(source, {})
    tokenizer = dataclasses.replace(prompter.tokenizer, chat_template=template)
    return dataclasses.replace(prompter, tokenizer=tokenizer)


def chat(*messages: dict[str, Any], **fields: Any) -> ChatCompletionBody:
    return ChatCompletionBody.model_validate({"model": "m", "messages": messages, **fields})


async def spelled(prompter: Prompter, *messages: dict[str, Any]) -> list[str]:
    ids = await with_template(prompter, SPELL_OUT).chat(chat(*messages))
    return prompter.tokenizer.model.decode(ids, skip_special_tokens=False).splitlines()


async def test_content_forms_and_roles_reach_the_template_as_plain_text(
    prompter: Prompter,
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    lines = await spelled(
        prompter,
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
        {"role": "assistant", "content": None, "refusal": "No."},
    )
    assert lines == [
        '{"role": "system", "content": "Be brief."}',
        '{"role": "user", "content": "Hi"}',
        '{"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function",'
        ' "function": {"name": "f", "arguments": {"a": 1}}}]}',
        '{"role": "tool", "content": "7", "tool_call_id": "c1"}',
        '{"role": "assistant", "content": "No."}',
    ]


@pytest.mark.parametrize("arguments", ["{broken", "[" * 100_000])
async def test_tool_arguments_that_are_no_json_are_shown_as_they_are(
    prompter: Prompter, arguments: str
) -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments[:7] }}"
    function = {"name": "f", "arguments": arguments}
    ids = await with_template(prompter, template).chat(
        chat({"role": "assistant", "tool_calls": [{"id": "c", "function": function}]})
    )
    assert prompter.tokenizer.model.decode(ids) == arguments[:7]


async def refused(prompter: Prompter, body: ChatCompletionBody) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        await prompter.chat(body)
    return caught.value


async def test_a_part_that_is_not_text_is_refused_by_its_place(prompter: Prompter) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    error = await refused(prompter, chat({"role": "user", "content": [image]}))
    assert error.param == "messages[0].content[0].type"


async def test_a_text_part_without_text_is_refused(prompter: Prompter) -> None:
    error = await refused(prompter, chat({"role": "user", "content": [{"type": "text"}]}))
    assert (error.code, error.param) == (
        "missing_required_parameter",
        "messages[0].content[0].text",
    )


async def test_the_templates_own_objection_is_the_message(prompter: Prompter) -> None:
    strict = with_template(prompter, "{{ raise_exception('Only one turn, please') }}")
    error = await refused(strict, chat({"role": "user", "content": "hi"}))
    assert (error.status, error.message) == (400, "Only one turn, please")


@pytest.mark.parametrize(
    ("source", "kwargs"),
    [
        (None, {}),
        ("", {}),
        ("{{ x }}", {"x": "\ud800"}),
        ("{{ x }}", {"messages": []}),
        ("{{ x }}", {"self": 1}),
    ],
    ids=["no template", "nothing rendered", "half a surrogate", "messages replaced", "self"],
)
async def test_a_prompt_that_cannot_be_made_is_a_bad_request(
    prompter: Prompter, source: str | None, kwargs: dict[str, Any]
) -> None:
    body = chat({"role": "user", "content": "hi"}, chat_template_kwargs=kwargs)
    assert (await refused(with_template(prompter, source), body)).status == 400


async def test_variables_of_the_client_reach_the_template(prompter: Prompter) -> None:
    body = chat({"role": "user", "content": "hi"}, chat_template_kwargs={"mood": "calm"})
    ids = await with_template(prompter, "{{ mood }}").chat(body)
    assert prompter.tokenizer.model.decode(ids) == "calm"


def nested(num: int) -> Any:
    """So many lists, each in the other."""
    value: Any = []
    for _ in range(num - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "a" * MAX_VARIABLES_CHARS,
        [0] * (MAX_VARIABLES_CHARS // 2),
        {"a" * (MAX_VARIABLES_CHARS // 2): 1, "b" * (MAX_VARIABLES_CHARS // 2): 1},
        10 ** (MAX_VARIABLES_CHARS + 1),
        nested(MAX_VARIABLES_DEPTH),
    ],
    ids=["text", "numbers", "names", "digits", "depth"],
)
def test_variables_of_the_client_are_bounded_in_size_and_depth(value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        chat({"role": "user", "content": "hi"}, chat_template_kwargs={"x": value})
    found = [{**each, "loc": ("body", *each["loc"])} for each in caught.value.errors()]
    error = from_validation(found)
    assert (error.code, error.param) == ("invalid_value", "chat_template_kwargs")


def test_control_variables_within_the_bounds_are_taken() -> None:
    for value in (
        nested(MAX_VARIABLES_DEPTH - 1),
        "a" * (MAX_VARIABLES_CHARS - 10),
        *(2**63, 0.5, None, [True]),
    ):
        chat({"role": "user", "content": "hi"}, chat_template_kwargs={"x": value})


async def test_a_template_that_says_more_than_fits_is_stopped_in_the_midst(
    prompter: Prompter,
) -> None:
    endless = "{% for _ in range(100000) %}{{ x }}{% endfor %}{{ raise_exception('the end') }}"
    body = chat({"role": "user", "content": "hi"}, chat_template_kwargs={"x": "a" * 100})
    error = await refused(with_template(prompter, endless), body)
    assert (error.code, error.param) == ("context_length_exceeded", "messages")
    assert "more than 1024 characters" in error.message


async def test_a_prompt_waits_for_no_disk_that_others_wait_for(prompter: Prompter) -> None:
    """While others take all threads that go to a disk or a bucket, which is the control."""
    loop, may_end = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    hanging = asyncio.create_task(asyncio.to_thread(may_end.wait))
    reading = asyncio.create_task(asyncio.to_thread(int))
    try:
        async with asyncio.timeout(30):
            assert await prompter.texts(["The quick"]) == [[504, 2365]]
            spell_out = with_template(prompter, SPELL_OUT)
            await spell_out.chat(chat({"role": "user", "content": "hi"}))
        assert not reading.done(), "it waits for the one that hangs: nothing was proved otherwise"
    finally:
        may_end.set()
        await asyncio.gather(hanging, reading)


async def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(prompter: Prompter) -> None:
    error = await refused(prompter, chat({"role": "user", "content": "a" * (16 * 64 + 1)}))
    assert error.code == "context_length_exceeded"
    assert "1025 characters" in error.message
    with pytest.raises(BadRequestError, match="1025 characters"):
        await prompter.texts(["a" * 1025])


@pytest.mark.parametrize("prompts", [[""], [[]], [[-1]], [[49_152]], ["fine", ""]])
async def test_an_empty_prompt_or_a_foreign_token_is_refused(
    prompter: Prompter, prompts: list[Any]
) -> None:
    with pytest.raises(BadRequestError):
        await prompter.texts(prompts)


async def test_text_and_token_prompts_are_kept_in_order(prompter: Prompter) -> None:
    assert await prompter.texts(["The quick", "The"]) == [[504, 2365], [504]]
    assert await prompter.texts([[5, 6], [7]]) == [[5, 6], [7]]


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "default", "expected"),
    [(60, 4, None, 4), (60, None, None, 4), (60, None, 16, 4), (10, None, 16, 16), (63, 1, 16, 1)],
)
def test_the_answer_gets_what_was_asked_or_what_is_left(
    prompter: Prompter, num_prompt: int, max_tokens: int | None, default: int | None, expected: int
) -> None:
    assert prompter.room_for([0] * num_prompt, max_tokens, default) == expected


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(60, 5), (64, None), (64, 1), (100, None)])
def test_what_does_not_fit_the_context_is_refused_with_the_numbers(
    prompter: Prompter, num_prompt: int, max_tokens: int | None
) -> None:
    with pytest.raises(BadRequestError) as caught:
        prompter.room_for([0] * num_prompt, max_tokens, None)
    assert caught.value.code == "context_length_exceeded"
    numbers = f"64 tokens. However, you requested {num_prompt + (max_tokens or 1)} tokens"
    assert numbers in caught.value.message
    assert f"({num_prompt} in the prompt, {max_tokens or 1} in the completion)" in (
        caught.value.message
    )


async def test_another_template_is_given_the_conversation_and_its_text_is_the_prompt(
    prompter: Prompter,
) -> None:
    given: list[Any] = []

    async def render(messages: list[Message], variables: dict[str, Any], max_chars: int) -> str:
        given.append((messages, variables, max_chars))
        return "The quick"

    body = chat({"role": "developer", "content": "hi"}, chat_template_kwargs={"mood": "calm"})
    assert await prompter.chat(body, render) == [504, 2365]
    assert given == [([{"role": "system", "content": "hi"}], {"mood": "calm"}, 16 * 64)]


@pytest.mark.parametrize("text", ["", "a" * 1025, "\ud800"])
async def test_what_another_template_makes_is_checked_as_the_bases_is(
    prompter: Prompter, text: str
) -> None:
    async def render(*_: Any) -> str:
        return text

    with pytest.raises(BadRequestError):
        await prompter.chat(chat({"role": "user", "content": "hi"}), render)
