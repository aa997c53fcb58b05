"""Bodies that ask a model one thing: a text to go on from, or a conversation.

Knows nothing of whom they ask. Invariant: it is one of the two.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from app.bodies import Body


class PromptOrMessages(Body):
    """Either `prompt` or `messages`; how long they may be is said by who inherits."""

    prompt: str | None = None
    messages: list[Any] | None = None

    @model_validator(mode="after")
    def _asks_one_thing(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages is needed")
        return self
