"""Golden prompts as the API takes them, and as the registry keeps them till the rollout is over.

Knows nothing of how they are asked. Invariant: to read one compiles nothing of what its tenant
wrote: whether there is sense in an expectation is found out in a thread
(`app.rollouts.golden_intake`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from app.bodies import Body, Storable
from app.prompt_bodies import PromptOrMessages
from app.rollouts.expectations import IsMet, expects_json, expects_pattern, expects_text

MAX_PROMPTS = 50
MAX_PROMPT_CHARS = 8192
MAX_MESSAGES = 8
MAX_ANSWER_TOKENS = 512

PromptText = Annotated[str, StringConstraints(max_length=MAX_PROMPT_CHARS), Storable]


class GoldenMessage(Body):
    role: Literal["system", "user", "assistant"]
    content: PromptText


class GoldenPrompt(PromptOrMessages):
    """Either `prompt` or `messages`, and one of what the answer must be.

    `exact`: this text, but for blanks around it. `regex`: an RE2 pattern that is found in it.
    `json_schema`: it is JSON of this schema, which refers to nothing.
    """

    prompt: Annotated[PromptText, Field(min_length=1)] | None = None
    messages: (
        Annotated[list[GoldenMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None
    ) = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_ANSWER_TOKENS)] = 128
    exact: PromptText | None = None
    regex: PromptText | None = None
    json_schema: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _expects_one_thing(self) -> Self:
        if sum(each is not None for each in (self.exact, self.regex, self.json_schema)) != 1:
            raise ValueError("exactly one of exact, regex and json_schema is needed")
        return self

    def expectation(self) -> IsMet:
        """Takes milliseconds: in a thread. Raises ExpectationError."""
        if self.exact is not None:
            return expects_text(self.exact)
        if self.regex is not None:
            return expects_pattern(self.regex)
        assert self.json_schema is not None, "what was checked has one of them"
        return expects_json(self.json_schema)

    def stored(self) -> dict[str, Any]:
        """As JSON values, from which it can be made again."""
        return self.model_dump(mode="json", exclude_none=True)
