"""Renders one template, again and again, in a process that was just made for it.

Knows nothing of whose it is. Invariants: no byte of the template is read before the process is
confined (`app.adapters.confinement`); whatever the template does, the worst that happens is that
this process ends without an answer. The kernel ends it when a rendering takes too long
(setitimer(2)), and refuses it memory beyond its own.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from app.adapters.confinement import COMPILING, confine
from app.chat_templates.messages import (
    COMPILE_CPU_S,
    DEADLINE_S,
    LENGTH_BYTES,
    MAX_MESSAGE_CHARS,
    MAX_RENDERS,
    MEMORY_BYTES,
    RENDER_CPU_S,
    Answer,
    Problem,
    Setup,
    frame,
)
from app.completions.chat_template import ChatTemplate, RefusedByTemplateError

# Before its first task a process may wait for long; all its life it works no longer than this.
_LIFE_CPU_S = round(MAX_RENDERS * RENDER_CPU_S + COMPILE_CPU_S) + 10
_WAIT_S = 24 * 3600


def work(connection: int) -> None:
    """Serve one connection until its other end is closed."""
    confine((), memory_bytes=MEMORY_BYTES, cpu_s=_LIFE_CPU_S, deadline_s=_WAIT_S, allowed=COMPILING)
    _write(connection, frame(b""))
    setup = _read_frame(connection)
    if setup is None:
        return
    template = _compile(setup)
    for number in range(1, MAX_RENDERS + 1):
        task = _read_frame(connection)
        if task is None:
            return
        answer = _answer(template, task, is_last=number == MAX_RENDERS)
        _write(connection, frame(answer))


def _compile(setup: bytes) -> ChatTemplate | Answer:
    """The template, or what every task is answered where there is none."""
    try:
        with _limited(COMPILE_CPU_S):
            content = msgspec.json.decode(setup, type=Setup)
            return ChatTemplate(content.source, content.special_tokens)
    except MemoryError:
        return _problem("memory")
    except Exception as error:  # the edge of a process: a compiler may fail in any way
        return _problem("failed", error)


def _answer(template: ChatTemplate | Answer, task: bytes, *, is_last: bool) -> bytes:
    try:
        with _limited(RENDER_CPU_S):
            answer = template if isinstance(template, Answer) else _render(template, task)
            return msgspec.json.encode(msgspec.structs.replace(answer, is_last=is_last))
    except MemoryError:
        answer = _problem("memory")
    except RefusedByTemplateError as error:
        answer = _problem("refused", error)
    except Exception as error:  # the edge of a process: a template may fail in any way
        answer = _problem("failed", error)
    return msgspec.json.encode(msgspec.structs.replace(answer, is_last=is_last))


def _render(template: ChatTemplate, task: bytes) -> Answer:
    content: dict[str, Any] = json.loads(task)
    text = template.render(content["messages"], content["variables"])
    if len(text) > content["max_chars"]:
        return _problem("too_long")
    return Answer(text=text)


@contextmanager
def _limited(cpu_s: float) -> Iterator[None]:
    """The signals of these timers end the process: nothing that Python does can hold them up."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _problem(problem: Problem, error: Exception | None = None) -> Answer:
    message = "" if error is None else str(error)[:MAX_MESSAGE_CHARS]
    return Answer(problem=problem, message=message.encode(errors="replace").decode())


def _read_frame(connection: int) -> bytes | None:
    """None where nothing more comes."""
    head = _read(connection, LENGTH_BYTES)
    return None if head is None else _read(connection, int.from_bytes(head, "big"))


def _read(connection: int, num_bytes: int) -> bytes | None:
    parts = []
    while num_bytes:
        part = os.read(connection, min(num_bytes, 1 << 20))
        if not part:
            return None
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def _write(connection: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(connection, view) :]
