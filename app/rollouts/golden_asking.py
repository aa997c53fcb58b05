"""Asks golden prompts of two versions, over the real queue, and counts what each fails.

Knows nothing of rows. A few prompts are asked at a time; one that is failed is asked again, of
either version alike. Invariants: they are trials (`app.completions.trial`), which nobody is billed
for; where an engine says nothing of the version itself, nothing is said of it; no text is kept.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.chat_templates.sandbox import TemplateSandbox
from app.chat_templates.versions import VersionTemplates
from app.completions.tokenizer import Tokenizer
from app.completions.trial import NotAnsweredError, TrialAnswer, Trials, TriedVersion
from app.errors import BadRequestError, UnavailableError
from app.rollouts.golden import MAX_ASKS
from app.rollouts.golden_schemas import GoldenPrompt
from app.settings import WorkerSettings
from engine.transport.client import QueueClient
from lora.base_spec import BaseSpec
from lora.store import AdapterStore

NUM_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Asker:
    trials: Trials

    async def failures(
        self, prompts: Sequence[GoldenPrompt], versions: Sequence[TriedVersion]
    ) -> list[tuple[int, ...]]:
        """For each version the places of the prompts that it failed. Raises NotAnsweredError."""
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
            _, others = errors.split(NotAnsweredError)
            if others is not None:
                raise others from None
            raise NotAnsweredError(str(errors.exceptions[0])) from None
        return [
            tuple(place for place, task in enumerate(tasks) if not task.result()) for tasks in asked
        ]

    async def _passes(self, prompt: GoldenPrompt, version: TriedVersion) -> bool:
        """Whether one of several answers is what was expected."""
        token_ids = await self._tokens_of(prompt, version)
        if token_ids is None:
            return False
        is_met = prompt.expectation()
        for _ in range(MAX_ASKS):
            answer = await self.trials.answer(version, token_ids, max_tokens=prompt.max_tokens)
            if isinstance(answer, TrialAnswer) and await asyncio.to_thread(is_met, answer.text):
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
            raise NotAnsweredError(error.code) from error  # the base is another one since


async def tokens_of(trials: Trials, version: TriedVersion, prompt: GoldenPrompt) -> list[int]:
    """What an engine is asked. Raises as `Trials.tokens_of`."""
    messages = None
    if prompt.messages is not None:
        messages = [each.model_dump() for each in prompt.messages]
    return await trials.tokens_of(version, prompt.prompt, messages, prompt.max_tokens)


@asynccontextmanager
async def open_asker(
    settings: WorkerSettings, base: BaseSpec, store: AdapterStore
) -> AsyncIterator[Asker]:
    """An asker with an end of the queue of its own."""
    tokenizer = await asyncio.to_thread(Tokenizer.from_folder, settings.model)
    secret = settings.queue_secret.get_secret_value()
    queue = QueueClient(settings.redis_url, f"golden-{secrets.token_hex(6)}", secret=secret)
    sandbox = TemplateSandbox(tokenizer.special_tokens)
    try:
        await queue.start()
        yield Asker(Trials(tokenizer, base, queue, VersionTemplates(store, sandbox)))
    finally:
        await queue.close()
        await sandbox.close()
