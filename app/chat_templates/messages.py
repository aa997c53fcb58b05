"""What a template's process is told and answers: frames of JSON on one connection.

Knows nothing of processes. A frame is its length in `LENGTH_BYTES`, then as many bytes. The process
greets with an empty one when it has given up what it must not have; then it is sent one `Setup`,
and a task (`{"messages", "variables", "max_chars"}`) for each `Answer`. Invariant: of what a
process answers only `text`, of at most `max_chars`, and `message` are a template's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

LENGTH_BYTES = 4
MEMORY_BYTES = 256 << 20  # address space beyond what a process has at its start
RENDER_CPU_S = 0.2
COMPILE_CPU_S = 1.0
DEADLINE_S = 5.0  # wall time of either: the machine may be busy
MAX_RENDERS = 1000  # of one process; then another one takes its place
MAX_MESSAGE_CHARS = 500

Problem = Literal["refused", "failed", "too_long", "memory", "time"]


class Setup(msgspec.Struct, frozen=True):
    """What a process renders for all its life, and `bos_token`, `eos_token`, ... of the base."""

    source: str
    special_tokens: dict[str, str]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The prompt, or what is the matter: in words that are the template's own, or about it.

    is_last: the process ends with it.
    """

    text: str | None = None
    problem: Problem | None = None
    message: str = ""
    is_last: bool = False


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def encode_task(
    messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], max_chars: int
) -> bytes:
    """Any JSON, integers of any size and halves of surrogate pairs too.

    Raises ValueError, RecursionError for what is no JSON, or nested too deeply.
    """
    task = {"messages": messages, "variables": variables, "max_chars": max_chars}
    return json.dumps(task).encode()
