"""Documented fields that are not served: accepted where they say what would happen anyway.

Knows nothing of HTTP. Invariant: a request is answered as asked or refused with the field's name;
nothing that would change the answer is dropped in silence.
"""

from __future__ import annotations

from typing import Any

from app.completions.schemas import CommonBody
from app.errors import BadRequestError

# For each field the values under which it asks for nothing. `null` is always one of them.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "structured_outputs": (),
    "priority": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}


def refuse_unsupported(body: CommonBody) -> None:
    """Raise BadRequestError `unsupported_parameter` for the first field that asks for something.

    Also where fields contradict each other.
    """
    if body.stream_options is not None and not body.stream:
        raise BadRequestError(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )
    for field in sorted(body.model_fields_set & _NEUTRAL.keys()):
        value = getattr(body, field)
        if value is not None and not any(_is_same(value, v) for v in _NEUTRAL[field]):
            raise BadRequestError(
                f"The parameter {field!r} is not supported by this server.",
                code="unsupported_parameter",
                param=field,
            )


def _is_same(value: Any, neutral: Any) -> bool:
    """Equality as JSON has it: 0 and 0.0 are one number, but false is none."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
