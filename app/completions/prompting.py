"""From a validated body to prompt token ids, and the room that is left for the answer.

Knows nothing of HTTP or of adapters. Invariant: a prompt that leaves here is not empty, holds only
ids of the base's vocabulary, and fits the base's context with every token it may still generate.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.completions.chat_template import ChatTemplateError, Message, TooLongError
from app.completions.schemas import ChatCompletionBody, ChatMessage, ContentPart, ToolCall
from app.completions.tokenizer import Tokenizer
from app.errors import BadRequestError

# No tokenizer of the family makes fewer tokens of longer text, blank runs apart: whatever is longer
# cannot fit, and is refused before it costs a tokeniser's time.
MAX_CHARS_PER_TOKEN = 16

_ROLES = {"developer": "system", "function": "tool"}

Render = Callable[[list[Message], dict[str, Any], int], Awaitable[str]]
"""(messages, variables, max_chars) -> the text of a prompt. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class Prompter:
    """Makes prompts for one base model."""

    tokenizer: Tokenizer
    vocab_size: int
    max_model_len: int

    async def chat(self, body: ChatCompletionBody, render: Render | None = None) -> list[int]:
        """The prompt of a conversation, through the base's template or the one behind `render`.

        Raises BadRequestError, and what `render` raises.
        """
        messages = [_to_template(i, message) for i, message in enumerate(body.messages)]
        self._check_length(sum(len(m["content"]) for m in messages), "messages")
        variables = body.chat_template_kwargs or {}
        if render is None:
            prompt = await self._in_thread(self._render_and_encode, messages, variables)
        else:
            rendered = await render(messages, variables, self._max_chars)
            prompt = await self._in_thread(self._encode, rendered)
        return self._checked(prompt, "messages")

    async def texts(self, prompts: Sequence[str] | Sequence[list[int]]) -> list[list[int]]:
        """The prompts of a text completion, each given as text or ids. Raises BadRequestError."""
        encoded = []
        for prompt in prompts:
            if isinstance(prompt, str):
                self._check_length(len(prompt), "prompt")
                prompt = await self._in_thread(self.tokenizer.encode_prompt, prompt)
            encoded.append(self._checked(prompt, "prompt"))
        return encoded

    def room_for(self, prompt: Sequence[int], max_tokens: int | None, default: int | None) -> int:
        """How many tokens may be generated after `prompt`.

        An explicit `max_tokens` must fit; a default (None: all the room) is cut to what fits.
        Raises BadRequestError `context_length_exceeded`.
        """
        room = self.max_model_len - len(prompt)
        if room < 1 or (max_tokens is not None and max_tokens > room):
            raise self._too_long(len(prompt), max_tokens or 1)
        if max_tokens is not None:
            return max_tokens
        return room if default is None else min(default, room)

    async def _in_thread(self, work: Callable[..., list[int]], *args: Any) -> list[int]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.tokenizer.threads, work, *args)

    def _render_and_encode(self, messages: list[Message], variables: dict[str, Any]) -> list[int]:
        template = self.tokenizer.chat_template
        if template is None:
            raise BadRequestError(
                "This model has no chat template. Use /v1/completions.",
                code="unsupported_operation",
                param="messages",
            )
        try:
            rendered = template.render(messages, variables, self._max_chars)
        except TooLongError as error:
            raise self._too_many_chars(f"more than {self._max_chars}", "messages") from error
        except ChatTemplateError as error:
            raise BadRequestError(str(error), param="messages") from error
        return self._encode(rendered)

    def _encode(self, rendered: str) -> list[int]:
        try:
            rendered.encode()
        except UnicodeEncodeError as error:
            raise BadRequestError(str(error), param="messages") from error
        self._check_length(len(rendered), "messages")
        return self.tokenizer.encode_chat(rendered)

    @property
    def _max_chars(self) -> int:
        return MAX_CHARS_PER_TOKEN * self.max_model_len

    def _check_length(self, num_chars: int, param: str) -> None:
        if num_chars > self._max_chars:
            raise self._too_many_chars(str(num_chars), param)

    def _too_many_chars(self, num_chars: str, param: str) -> BadRequestError:
        return BadRequestError(
            f"This model's maximum context length is {self.max_model_len} tokens, which no text of"
            f" more than {self._max_chars} characters fits. Yours has {num_chars} characters.",
            code="context_length_exceeded",
            param=param,
        )

    def _checked(self, prompt: list[int], param: str) -> list[int]:
        if not prompt:
            raise BadRequestError("The prompt is empty.", param=param)
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            raise BadRequestError(
                f"Token ids must be between 0 and {self.vocab_size - 1}.", param=param
            )
        return prompt

    def _too_long(self, num_prompt: int, num_completion: int) -> BadRequestError:
        return BadRequestError(
            f"This model's maximum context length is {self.max_model_len} tokens. However, you"
            f" requested {num_prompt + num_completion} tokens ({num_prompt} in the prompt,"
            f" {num_completion} in the completion). Please reduce the length of either.",
            code="context_length_exceeded",
        )


def _to_template(index: int, message: ChatMessage) -> Message:
    """One message as templates know it: plain text, and no key that says nothing."""
    texts = [_text(index, i, part) for i, part in enumerate(message.content)]
    fields: Message = {
        "role": _ROLES.get(message.role, message.role),
        "content": "".join(texts) or message.refusal or "",
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": [_to_tool_call(call) for call in message.tool_calls or []] or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _text(message_index: int, part_index: int, part: ContentPart) -> str:
    param = f"messages[{message_index}].content[{part_index}]"
    if part.type not in ("text", "refusal"):
        raise BadRequestError(
            "This model reads text only; other content parts are not supported.",
            param=f"{param}.type",
        )
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise BadRequestError(
            f"Missing required parameter: '{param}.{part.type}'.",
            code="missing_required_parameter",
            param=f"{param}.{part.type}",
        )
    return text


def _to_tool_call(call: ToolCall) -> dict[str, Any]:
    """Templates take the arguments as an object, where OpenAI has its JSON text."""
    arguments: Any = call.function.arguments
    # A model may have written broken or bottomless JSON: that is shown as it was.
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.loads(arguments)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}
