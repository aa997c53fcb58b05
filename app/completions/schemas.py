"""The bodies of `/v1/chat/completions` and `/v1/completions`, as OpenAI's SDKs send them.

Knows nothing of models, tenants or tokens. Invariant: a top-level field is served, or is a
documented hint that changes no token, or is named in `app.completions.unsupported`; any other is a
400. Unknown keys inside messages are ignored, since clients echo what servers once sent.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.completions.fields import (
    EndUserId,
    Flag,
    Metadata,
    NumChoices,
    Prompts,
    QueueTimeout,
    Seed,
    Stops,
    Temperature,
    TemplateVariables,
    Text,
    TokenCount,
    TopK,
    TopP,
    as_parts,
)


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: Flag | None = None
    include_obfuscation: Flag | None = None


class CommonBody(BaseModel):
    """What both routes share: served fields first, then hints, then fields not served."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: Annotated[Text, Field(min_length=1, max_length=512)]
    max_tokens: TokenCount | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stop: Stops = []
    n: NumChoices | None = None
    stream: Flag | None = None
    stream_options: StreamOptions | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    queue_timeout: QueueTimeout | None = None

    user: EndUserId | None = None
    safety_identifier: EndUserId | None = None
    metadata: Metadata | None = None
    store: Flag | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None

    frequency_penalty: Any = None
    presence_penalty: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    best_of: Any = None
    echo: Any = None
    suffix: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None
    stop_token_ids: Any = None
    skip_special_tokens: Any = None
    include_stop_str_in_output: Any = None
    structured_outputs: Any = None
    priority: Any = None


class ContentPart(BaseModel):
    """One part of a message; which types are served is `app.completions.prompting`'s business."""

    model_config = ConfigDict(extra="ignore")

    type: Text
    text: Text | None = None
    refusal: Text | None = None


class FunctionCall(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: Text
    arguments: Text = ""


class ToolCall(BaseModel):
    """A call the assistant made earlier in the conversation."""

    model_config = ConfigDict(extra="ignore")

    id: Text | None = None
    type: Text = "function"
    function: FunctionCall


Content = Annotated[
    list[ContentPart],
    BeforeValidator(as_parts, json_schema_input_type=str | list[ContentPart] | None),
]


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Content = []
    refusal: Text | None = None
    name: Text | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Text | None = None


class ChatCompletionBody(CommonBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: TokenCount | None = None
    chat_template_kwargs: TemplateVariables | None = None

    verbosity: Literal["low", "medium", "high"] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    parallel_tool_calls: Flag | None = None
    prediction: dict[str, Any] | None = None

    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    top_logprobs: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None


class CompletionBody(CommonBody):
    prompt: Prompts
