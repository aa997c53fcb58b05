"""The types of request fields: OpenAI's open forms brought to one, and bounds on everything.

Knows nothing of models, tenants or tokens. Invariant: a field's error is reported under the name
the client sent, so open forms are normalised before validation and not declared as unions (pydantic
reports a union once per member).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

MAX_PROMPTS = 128
MAX_VARIABLES_CHARS = 64 << 10
MAX_VARIABLES_DEPTH = 32


def _encodable(text: str) -> str:
    """JSON can spell half a surrogate pair, which is no text: no tokenizer or database takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError("string_unicode", "Input should be valid Unicode") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Flag = Annotated[bool, Field(strict=True)]
TokenCount = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]
Temperature = Annotated[float, Field(strict=True, ge=0, le=2)]
TopP = Annotated[float, Field(strict=True, ge=0, le=1)]
TopK = Annotated[int, Field(strict=True, ge=-1, le=2**31 - 1)]
Seed = Annotated[int, Field(strict=True, ge=-(2**63), le=2**63 - 1)]
QueueTimeout = Annotated[float, Field(strict=True, gt=0)]
NumChoices = Annotated[int, Field(strict=True, ge=1, le=8)]


def _as_list(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, str) else value


def as_parts(value: Any) -> Any:
    """Message content: text, a list of parts, or null."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    return [] if value is None else value


def _as_prompts(value: Any) -> list[str] | list[list[int]]:
    """A prompt is text or token ids; one or a list of them, all of a kind."""
    prompts = [value] if isinstance(value, str) or _is_token_ids(value) else value
    if not isinstance(prompts, list) or not prompts:
        raise PydanticCustomError("prompt_type", "Input should be text or token ids, or a list")
    if len(prompts) > MAX_PROMPTS:
        raise PydanticCustomError(
            "too_long", "There may be at most {n} prompts", {"n": MAX_PROMPTS}
        )
    if all(isinstance(prompt, str) for prompt in prompts):
        return [_encodable(prompt) for prompt in prompts]
    if all(_is_token_ids(prompt) for prompt in prompts):
        return prompts
    raise PydanticCustomError("prompt_type", "Every prompt should be text, or every one token ids")


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


Stops = Annotated[
    list[Annotated[Text, Field(min_length=1, max_length=1024)]],
    Field(max_length=4),
    BeforeValidator(_as_list, json_schema_input_type=str | list[str] | None),
]
EndUserId = Annotated[Text, Field(max_length=128)]
Metadata = Annotated[
    dict[
        Annotated[Text, Field(max_length=64)],
        Annotated[Text, Field(max_length=512)],
    ],
    Field(max_length=16),
]
Prompts = Annotated[
    list[str] | list[list[int]],
    PlainValidator(
        _as_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
    ),
]


def _bounded(variables: dict[str, Any]) -> dict[str, Any]:
    """What a template may say again for each message, and look into as deep as it goes."""
    num_chars = 0
    pending: list[tuple[int, Any]] = [(1, variables)]
    while pending:
        depth, value = pending.pop()
        num_chars += _num_chars(value)
        if num_chars > MAX_VARIABLES_CHARS:
            raise PydanticCustomError(
                "too_long", "It may hold at most {n} characters", {"n": MAX_VARIABLES_CHARS}
            )
        if not isinstance(value, dict | list):
            continue
        if depth > MAX_VARIABLES_DEPTH:
            raise PydanticCustomError(
                "too_deep", "It may be nested {n} deep at most", {"n": MAX_VARIABLES_DEPTH}
            )
        pending += [(depth + 1, each) for each in value]
        if isinstance(value, dict):
            pending += [(depth + 1, each) for each in value.values()]
    return variables


def _num_chars(value: Any) -> int:
    """About as many as it has in JSON; of what holds others, one for each, before these count."""
    if isinstance(value, str | dict | list):
        return 1 + len(value)
    return 1 + value.bit_length() // 3 if isinstance(value, int) else 1


TemplateVariables = Annotated[dict[str, Any], AfterValidator(_bounded)]
