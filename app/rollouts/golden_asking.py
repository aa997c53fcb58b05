"""Asks golden prompts of two versions, over the real queue, and counts what each fails.

Knows nothing of rows. A few prompts are asked at a time; one that is failed is asked again, of
either version alike. Invariants: they are trials (`app.completions.trial`), which nobody is billed
for; where an engine says nothing of the version itself, nothing is said of it; no text is kept;
nothing that a tenant wrote is compiled or matched on the event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from app.chat_templates.sandbox import TemplateSandbox
from app.chat_templates.versions import VersionTemplates
from app.completions.tokenizer import Tokenizer
from app.completions.trial import NotAnsweredError, TrialAnswer, Trials, TriedVersion
from app.errors import BadRequestError, UnavailableError
from app.rollouts.expectations import ExpectationError, IsMet
from app.rollouts.golden import MAX_ASKS
from app.rollouts.golden_schemas import GoldenPrompt
from app.settings import WorkerSettings
from engine.transport.client import QueueClient
from lora.base_spec import BaseSpec
from lora.store import AdapterStore

log = structlog.get_logger()

NUM_AT_ONCE = 4  # prompts of one rollout
JUDGE_S = 10.0  # an answer that takes longer to look at is not what was expected


class CannotBeAskedError(Exception):
    """And cannot be later either, unless something else is changed; the text is a code."""


@dataclass(frozen=True, slots=True)
class Asker:
    trials: Trials

    async def failures(
        self, prompts: Sequence[GoldenPrompt], versions: Sequence[TriedVersion]
    ) -> list[tuple[int, ...]]:
        """For each version the places of the prompts that it failed.

        Raises CannotBeAskedError, NotAnsweredError.
        """
        turns = asyncio.Semaphore(NUM_AT_ONCE)

        async def passes(prompt: GoldenPrompt, version: TriedVersion) -> bool:
            async with turns:
                return await self._passes(prompt, version)

        try:
            async with asyncio.TaskGroup() as group:
                asked = [
                    [group.create_task(passes(prompt, version)) for prompt in prompts]
                    for version in versions
                ]
        except ExceptionGroup as errors:
            raise _foremost(errors) from None
        return [
            tuple(place for place, task in enumerate(tasks) if not task.result()) for tasks in asked
        ]

    async def _passes(self, prompt: GoldenPrompt, version: TriedVersion) -> bool:
        """Whether one of several answers is what was expected."""
        token_ids = await self._tokens_of(prompt, version)
        if token_ids is None:
            return False
        try:
            is_met = await asyncio.to_thread(prompt.expectation)
        except ExpectationError as error:  # by other rules than when it came
            raise CannotBeAskedError("golden_prompts_invalid") from error
        for _ in range(MAX_ASKS):
            answer = await self.trials.answer(version, token_ids, max_tokens=prompt.max_tokens)
            if isinstance(answer, TrialAnswer) and await _is_met(is_met, answer.text):
                return True
        return False

    async def _tokens_of(self, prompt: GoldenPrompt, version: TriedVersion) -> list[int] | None:
        """None where the version's own template makes nothing of it that could be asked."""
        try:
            return await tokens_of(self.trials, version, prompt)
        except UnavailableError as error:
            raise NotAnsweredError(error.code) from error
        except BadRequestError as error:
            if version.template_sha256 is not None:
                return None
            raise CannotBeAskedError(error.code) from error  # the base is another one since


async def tokens_of(trials: Trials, version: TriedVersion, prompt: GoldenPrompt) -> list[int]:
    """What an engine is asked. Raises as `Trials.tokens_of`."""
    messages = None
    if prompt.messages is not None:
        messages = [each.model_dump() for each in prompt.messages]
    return await trials.tokens_of(version, prompt.prompt, messages, prompt.max_tokens)


@asynccontextmanager
async def open_asker(
    settings: WorkerSettings, base: BaseSpec, store: AdapterStore, sandbox: TemplateSandbox
) -> AsyncIterator[Asker]:
    """An asker with an end of the queue of its own; the sandbox stays the caller's."""
    tokenizer = await asyncio.to_thread(Tokenizer.from_folder, settings.model)
    secret = settings.queue_secret.get_secret_value()
    queue = QueueClient(settings.redis_url, f"golden-{secrets.token_hex(6)}", secret=secret)
    try:
        await queue.start()
        yield Asker(Trials(tokenizer, base, queue, VersionTemplates(store, sandbox)))
    finally:
        await queue.close()


async def _is_met(is_met: IsMet, text: str) -> bool:
    try:
        async with asyncio.timeout(JUDGE_S):
            return await asyncio.to_thread(is_met, text)
    except TimeoutError:
        log.warning("golden_answer_not_judged", num_chars=len(text))
        return False


def _foremost(errors: ExceptionGroup[Exception]) -> Exception:
    """Our own mistakes before what cannot be asked, and that before what was not answered."""
    _, others = errors.split((CannotBeAskedError, NotAnsweredError))
    if others is not None:
        return others
    impossible = errors.subgroup(CannotBeAskedError)
    if impossible is not None:
        return CannotBeAskedError(str(impossible.exceptions[0]))
    return NotAnsweredError(str(errors.exceptions[0]))
