"""Renders tenants' templates, each in a confined process of its own: a few of them at once.

Knows nothing of versions or of HTTP. Invariants: this process runs no template; no process is given
two owners' messages; one owner has one turn at a time, so that a template that takes all it may
take holds up its owner alone; what waits has a deadline. Processes are kept for the templates that
were rendered last, and for none that was not rendered for a while.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog

from app.adapters.zygote import Zygote
from app.chat_templates.kept import Kept
from app.chat_templates.messages import Answer, Setup, encode_task
from app.chat_templates.process import ProcessEndedError, TemplateProcess

log = structlog.get_logger()

ZYGOTE = "app.chat_templates.zygote"
MAX_AT_ONCE = 4
MAX_IDLE = 32
IDLE_S = 60.0
TURN_S = 10.0

T = TypeVar("T")

_TIME = Answer(problem="time", is_last=True)


class SandboxBusyError(Exception):
    """No turn came in time."""


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A template's text, by its SHA-256. `owner`: whose it is, as far as processes are shared."""

    owner: str
    sha256: str
    text: str


class TemplateSandbox:
    """Of one process's event loop. `special_tokens`: of the base, as templates know them."""

    def __init__(
        self,
        special_tokens: Mapping[str, str],
        *,
        max_at_once: int = MAX_AT_ONCE,
        max_idle: int = MAX_IDLE,
        idle_s: float = IDLE_S,
        turn_s: float = TURN_S,
    ) -> None:
        self._special_tokens = dict(special_tokens)
        self._zygote = Zygote(ZYGOTE)
        # Of its own, so that no conversation waits for uploads' disks.
        self._threads = ThreadPoolExecutor(max_at_once, thread_name_prefix="chat-templates")
        self._slots = asyncio.Semaphore(max_at_once)
        self._owners: weakref.WeakValueDictionary[str, asyncio.Lock]
        self._owners = weakref.WeakValueDictionary()
        self._idle: Kept[tuple[str, str], TemplateProcess]
        self._idle = Kept(max_idle, idle_s, TemplateProcess.close)
        self._turn_s = turn_s

    async def render(
        self,
        source: TemplateSource,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        max_chars: int,
    ) -> Answer:
        """What the template makes of the messages, or what is the matter with it.

        Raises SandboxError, SandboxBusyError.
        """
        try:
            encode = partial(encode_task, messages, variables, max_chars)
            task = await self._in_thread(encode)
        except (ValueError, RecursionError):
            return Answer(problem="failed", message="the messages are nested too deeply")
        async with self._turn(source.owner):
            kept = self._idle.pop((source.owner, source.sha256))
            if kept is not None:
                answer = await self._ask(kept, source, task, max_chars)
                if answer is not None:
                    return answer
            # NOTE: one that was kept may have died of something else: a new one tells.
            setup = Setup(source.text, self._special_tokens)
            connect = partial(self._in_thread, self._zygote.connect)
            made = await TemplateProcess.start(connect, setup)
            answer = await self._ask(made, source, task, max_chars)
        if answer is None:
            log.warning("chat_template_ended", owner=source.owner, sha256=source.sha256)
        return answer or _TIME

    async def close(self) -> None:
        self._idle.clear()
        await asyncio.to_thread(self._zygote.close)
        self._threads.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _ask(
        self, process: TemplateProcess, source: TemplateSource, task: bytes, max_chars: int
    ) -> Answer | None:
        """None where the process ended instead."""
        try:
            answer = await process.ask(task, max_chars)
        except ProcessEndedError as error:
            process.close()
            log.info("chat_template_process_ended", sha256=source.sha256, cause=str(error))
            return None
        except BaseException:  # nobody waits any more for what it still works on
            process.close()
            raise
        if answer.is_last:
            process.close()
        else:
            self._idle.put((source.owner, source.sha256), process)
        return answer

    @asynccontextmanager
    async def _turn(self, owner: str) -> AsyncIterator[None]:
        lock = self._owners.setdefault(owner, asyncio.Lock())
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._turn_s):
                    await stack.enter_async_context(lock)
                    await stack.enter_async_context(self._slots)
            except TimeoutError as error:
                raise SandboxBusyError(owner) from error
            yield
