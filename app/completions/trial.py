"""Runs one prompt on one version as a trial: for its owner to look at, at nobody's cost.

Knows nothing of why. Invariants: a trial is of no tenant's account, so that nobody is billed for or
limited by it; it has the lowest service tier, and yields to everybody; what is said of a version is
what an engine said of it: where another was to blame there is no answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.chat_templates.versions import VersionTemplates
from app.completions.choice import Choice
from app.completions.prompting import Prompter
from app.completions.schemas import ChatCompletionBody
from app.completions.tokenizer import Tokenizer
from app.context import AppContext
from engine.messages import (
    TRIAL_TENANT,
    AdapterRef,
    EngineError,
    EngineRequest,
    FinishReason,
    SamplingParams,
    ServiceTier,
)
from engine.transport.client import QueueClient
from engine.transport.errors import QueueUnavailableError
from lora.base_spec import BaseSpec

TIMEOUT_S = 120.0

# What an engine says of the adapter itself.
_BLAMED = frozenset(
    {"nonfinite_logits", "adapter_corrupt", "adapter_load_failed", "adapter_too_large"}
)


class NotAnsweredError(Exception):
    """No engine answered, and not for the version's sake; the text is a code, or a few words."""


@dataclass(frozen=True, slots=True)
class TriedVersion:
    """template_sha256: of the chat template that the version brought with it, if it did."""

    adapter: AdapterRef | None
    template_sha256: str | None = None


BASE = TriedVersion(None)


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    text: str
    finish_reason: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Trials:
    """In front of the engines that serve."""

    tokenizer: Tokenizer
    base: BaseSpec
    queue: QueueClient
    templates: VersionTemplates

    @property
    def prompter(self) -> Prompter:
        return Prompter(self.tokenizer, self.base.vocab_size, self.base.max_model_len)

    async def tokens_of(
        self,
        version: TriedVersion,
        prompt: str | None,
        messages: Sequence[Mapping[str, Any]] | None,
        max_tokens: int,
    ) -> list[int]:
        """What an engine is asked: a text, or a conversation through the version's own template.

        Raises BadRequestError where it does not fit the base, or the template makes nothing of it;
        UnavailableError where there is no template to be had.
        """
        if prompt is not None:
            (tokens,) = await self.prompter.texts([prompt])
        else:
            assert messages is not None, "there is a prompt or there are messages"
            tokens = await self._conversation(version, messages)
        self.prompter.room_for(tokens, max_tokens, None)
        return tokens

    async def answer(
        self,
        version: TriedVersion,
        token_ids: list[int],
        *,
        max_tokens: int,
        timeout_s: float = TIMEOUT_S,
    ) -> TrialAnswer | EngineError:
        """The greedy answer, or what an engine said of the version itself.

        Raises NotAnsweredError.
        """
        request = EngineRequest(
            request_id=f"{secrets.token_hex(16)}-0",
            tenant_id=TRIAL_TENANT,
            api_id=self.queue.api_id,
            epoch=0,
            prompt_token_ids=token_ids,
            sampling=SamplingParams(
                seed=0,
                max_tokens=max_tokens,
                temperature=0.0,
                stop_token_ids=tuple(self.base.eos_token_ids),
            ),
            adapter=version.adapter,
            service_tier=ServiceTier.FLEX,
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await self._run(request, timeout_s)
        except (TimeoutError, QueueUnavailableError) as error:
            raise NotAnsweredError(str(error) or "an engine took too long") from error

    async def _conversation(
        self, version: TriedVersion, messages: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        body = ChatCompletionBody.model_validate({"model": "trial", "messages": messages})
        render = self.templates.render_of(version.adapter, version.template_sha256)
        return await self.prompter.chat(body, render)

    async def _run(self, request: EngineRequest, timeout_s: float) -> TrialAnswer | EngineError:
        stops = request.sampling.stop_token_ids
        choice = Choice(0, self.tokenizer.start_detokenizer(), (), stops)
        chunks: list[str] = []
        async with await self.queue.submit(request, queue_timeout_s=timeout_s) as stream:
            async for output in stream:
                if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                    if output.error is not None and output.error.code in _BLAMED:
                        return output.error
                    raise NotAnsweredError("aborted" if output.error is None else output.error.code)
                chunks.append(choice.take(output).text)
                if choice.finish_reason is not None:
                    return TrialAnswer("".join(chunks), choice.finish_reason, choice.num_tokens)
        raise NotAnsweredError("a stream ended early")


def trials_of(context: AppContext) -> Trials:
    return Trials(context.tokenizer, context.base, context.queue, context.templates)
