"""A model's chat template: messages to the text that the model was trained to continue.

Knows nothing of tokens or of HTTP. Renders as `transformers.apply_chat_template` does (the same
sandbox, filters and globals), without importing it. Invariant: a template sees plain JSON values
only, and whatever it raises becomes a `ChatTemplateError` that a client may read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]

_NO_VARIABLES: dict[str, Any] = {"tools": None, "documents": None}
_FAILURES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)


class ChatTemplateError(ValueError):
    """The template refused the messages, or could not be applied to them."""


class RefusedByTemplateError(ChatTemplateError):
    """The template itself says what it does not take: its `raise_exception`."""


class TooLongError(ChatTemplateError):
    """It makes more text than was wanted."""


class ChatTemplate:
    """One compiled template. `special_tokens` are its variables `bos_token`, `eos_token`, ..."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Raises ChatTemplateError where the source is no Jinja template."""
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        max_chars: int | None = None,
    ) -> str:
        """The prompt for the next assistant turn; `variables` are the client's own.

        It ends as soon as it has made more than `max_chars`.
        Raises ChatTemplateError, RefusedByTemplateError, TooLongError.
        """
        known = {**_NO_VARIABLES, **self._special_tokens, **variables}
        try:
            pieces = self._template.generate(messages=messages, add_generation_prompt=True, **known)
            return _joined(pieces, max_chars)
        except TooLongError:
            raise
        except _RaisedError as error:
            raise RefusedByTemplateError(str(error)) from error
        except jinja2.TemplateError as error:
            raise ChatTemplateError(str(error)) from error
        except _FAILURES as error:
            # What a template computes may fail as any Python does; the cause is in the messages.
            raise ChatTemplateError(f"the chat template failed: {error}") from error


def _joined(pieces: Iterable[str], max_chars: int | None) -> str:
    """Raises TooLongError."""
    kept: list[str] = []
    num_chars = 0
    for piece in pieces:
        kept.append(piece)
        num_chars += len(piece)
        if max_chars is not None and num_chars > max_chars:
            raise TooLongError(f"the chat template makes more than {max_chars} characters")
    return "".join(kept)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is plain text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: now().strftime(format)
    return environment


class _RaisedError(jinja2.TemplateError):
    """By `raise_exception`."""


def _raise_exception(message: str) -> None:
    raise _RaisedError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML; models are trained on plain JSON."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
