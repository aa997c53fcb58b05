"""What the completion routes answer: OpenAI's objects, field by field.

Knows nothing of engines or of HTTP. Invariant: a field that a client's SDK reads is always there,
as null where there is nothing to say; `usage` of a chunk is absent unless usage was asked for.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(Struct, frozen=True):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Head(Struct, frozen=True):
    """What every object of one answer repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatMessage(Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    annotations: tuple[()] = ()


class ChatChoice(Struct, frozen=True):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: None = None


class ChatCompletion(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str = "default"
    system_fingerprint: str
    metadata: dict[str, str] | None = None


class ChatDelta(Struct, frozen=True, omit_defaults=True):
    """The first delta of a choice has the role, the last one nothing."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: None = None


class ChatChunk(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    service_tier: str = "default"
    system_fingerprint: str


class TextChoice(Struct, frozen=True):
    """Of a whole answer or of a chunk: they have one shape."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: None = None


class TextCompletion(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str
