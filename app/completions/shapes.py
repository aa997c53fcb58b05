"""Answers as OpenAI's objects: whole, or as the chunks of a stream.

Knows nothing of HTTP or of how text is made. Invariant: the chunks of an answer, put together,
say what its whole object says; roles come first, in index order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import UNSET, Struct, UnsetType, structs

from app.completions.choice import Delta
from app.completions.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Head,
    TextChoice,
    TextCompletion,
    Usage,
)


class Shape(Protocol):
    """The objects of one route. `usage` of a chunk is null or absent, as the client asked."""

    def whole(self, choices: Sequence[Delta], usage: Usage) -> Struct:
        """The answer; each of `choices` holds a choice's whole text."""

    def opening(self, num_choices: int) -> list[Struct]:
        """The chunks that come before any text."""

    def chunks(self, delta: Delta) -> list[Struct]:
        """The chunks of what one choice gained; none where that is nothing to see."""

    def closing(self, usage: Usage) -> list[Struct]:
        """The chunk after the last choice has ended, where usage was asked for."""


@dataclass(frozen=True, slots=True)
class ChatShape:
    head: Head
    includes_usage: bool = False
    metadata: dict[str, str] | None = None
    service_tier: str = "default"

    def whole(self, choices: Sequence[Delta], usage: Usage) -> Struct:
        return ChatCompletion(
            **_fields(self.head),
            choices=[
                ChatChoice(c.choice, ChatMessage(c.text), c.finish_reason or "") for c in choices
            ],
            usage=usage,
            metadata=self.metadata,
            service_tier=self.service_tier,
        )

    def opening(self, num_choices: int) -> list[Struct]:
        role = ChatDelta(role="assistant", content="")
        return [self._chunk([ChatChunkChoice(i, role)]) for i in range(num_choices)]

    def chunks(self, delta: Delta) -> list[Struct]:
        choices = []
        if delta.text:
            choices.append(ChatChunkChoice(delta.choice, ChatDelta(content=delta.text)))
        if delta.finish_reason is not None:
            choices.append(ChatChunkChoice(delta.choice, ChatDelta(), delta.finish_reason))
        return [self._chunk([choice]) for choice in choices]

    def closing(self, usage: Usage) -> list[Struct]:
        return [self._chunk([], usage)] if self.includes_usage else []

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> Struct:
        usage_field = usage if self.includes_usage else UNSET
        return ChatChunk(
            **_fields(self.head),
            choices=choices,
            usage=usage_field,
            service_tier=self.service_tier,
        )


@dataclass(frozen=True, slots=True)
class TextShape:
    head: Head
    includes_usage: bool = False

    def whole(self, choices: Sequence[Delta], usage: Usage) -> Struct:
        return self._completion([_text_choice(choice) for choice in choices], usage)

    def opening(self, num_choices: int) -> list[Struct]:
        return []

    def chunks(self, delta: Delta) -> list[Struct]:
        if not delta.text and delta.finish_reason is None:
            return []
        return [self._completion([_text_choice(delta)], self._no_usage)]

    def closing(self, usage: Usage) -> list[Struct]:
        return [self._completion([], usage)] if self.includes_usage else []

    @property
    def _no_usage(self) -> UnsetType | None:
        return None if self.includes_usage else UNSET

    def _completion(self, choices: list[TextChoice], usage: Usage | UnsetType | None) -> Struct:
        return TextCompletion(**_fields(self.head), choices=choices, usage=usage)


def _text_choice(delta: Delta) -> TextChoice:
    return TextChoice(delta.choice, delta.text, delta.finish_reason)


def _fields(head: Head) -> dict[str, Any]:
    return structs.asdict(head)
