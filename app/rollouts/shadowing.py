"""Runs a request on a second version as well, and compares what the two say.

The second sequence goes into the queue when the first does, so that one engine runs both in one
batch where it leases both. Knows nothing of aliases. Invariants: its answer goes nowhere; it is a
trial's, not the tenant's, so that nobody is billed or limited for it; the answer that is delivered
never waits for it; what is kept of both is how far they agree, and not a word.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec
import structlog

from app.completions.choice import Choice
from app.completions.tokenizer import Tokenizer
from app.errors import ApiError
from app.rollouts.samples import SampleBook
from app.rollouts.shadows import ShadowModel, ShadowSample
from engine.messages import TRIAL_TENANT, EngineRequest, FinishReason, ServiceTier
from engine.transport.client import QueueClient
from engine.transport.errors import QueueUnavailableError

log = structlog.get_logger()

TIMEOUT_S = 120.0
MAX_WATCHED_CHARS = 65_536  # of an answer; beyond that it is neither parsed nor compared
MAX_AT_ONCE = 64  # of one API process; beyond that requests run without their shadow

Reprompt = Callable[[EngineRequest], Awaitable[EngineRequest]]
"""The same request, with the prompt that another template makes. Raises ApiError."""

Run = asyncio.Task[str | None]
"""What the second version says; None where it failed."""


class Shadows:
    """Of one API process. What was begun is compared, or cancelled."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        queue: QueueClient,
        samples: SampleBook,
        now: Callable[[], datetime],
    ) -> None:
        self._tokenizer = tokenizer
        self._queue = queue
        self._samples = samples
        self._now = now
        self._comparing: set[asyncio.Task[None]] = set()
        self._num_open = 0

    def begin(
        self,
        shadow: ShadowModel,
        request: EngineRequest,
        stops: Sequence[str],
        reprompt: Reprompt | None = None,
    ) -> Run | None:
        """Let `request` run on the shadow too; None where too many do already.

        reprompt: gives it the prompt that the shadow's own template makes.
        """
        if self._num_open >= MAX_AT_ONCE:
            return None
        self._num_open += 1
        run = asyncio.create_task(self._run(_beside(shadow, request), stops, reprompt))
        run.add_done_callback(self._close_one)
        return run

    def compare(self, shadow: ShadowModel, text: str, run: Run) -> None:
        """Write down how far the two agree, once the second has ended. Waits for nothing.

        Of each no more than `MAX_WATCHED_CHARS` are looked at.
        """
        comparing = asyncio.create_task(self._compare(shadow, text, run))
        self._comparing.add(comparing)
        comparing.add_done_callback(self._comparing.discard)

    async def close(self) -> None:
        """Leave what still runs."""
        comparing = list(self._comparing)
        for task in comparing:
            task.cancel()
        await asyncio.gather(*comparing, return_exceptions=True)

    def _close_one(self, run: Run) -> None:
        self._num_open -= 1
        if not run.cancelled() and run.exception() is not None:
            log.error("shadow_failed", exc_info=run.exception())

    async def _run(
        self, request: EngineRequest, stops: Sequence[str], reprompt: Reprompt | None
    ) -> str | None:
        detokenizer = self._tokenizer.start_detokenizer()
        choice = Choice(0, detokenizer, stops, request.sampling.stop_token_ids)
        chunks: list[str] = []
        num_chars = 0
        try:
            if reprompt is not None:  # all that it waits for has a deadline
                request = await reprompt(request)
            async with (
                asyncio.timeout(TIMEOUT_S),
                await self._queue.submit(request, queue_timeout_s=TIMEOUT_S) as stream,
            ):
                async for output in stream:
                    if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                        return None
                    chunk = choice.take(output).text
                    if num_chars <= MAX_WATCHED_CHARS:
                        chunks.append(chunk)
                        num_chars += len(chunk)
                    if choice.is_finished:
                        return "".join(chunks)
        except (ApiError, TimeoutError, QueueUnavailableError):
            return None
        return None

    async def _compare(self, shadow: ShadowModel, text: str, run: Run) -> None:
        try:
            found = await run  # cancelled with this one
        except Exception:  # it has been logged; an answer that was delivered is not touched
            found = None
        sample = ShadowSample(self._now().timestamp(), shadow.version_id, is_error=found is None)
        if found is not None:
            text, found = text[:MAX_WATCHED_CHARS], found[:MAX_WATCHED_CHARS]
            sample = replace(
                sample,
                num_chars=len(text),
                num_shadow_chars=len(found),
                num_same=_num_same(text, found),
            )
        try:
            await self._samples.record_shadow(shadow.adapter_id, shadow.alias, sample)
        except QueueUnavailableError as error:
            log.warning("shadow_sample_lost", error=str(error))


def _beside(shadow: ShadowModel, request: EngineRequest) -> EngineRequest:
    """The same prompt and draws, on another version and of no tenant's account."""
    return msgspec.structs.replace(
        request,
        request_id=f"{secrets.token_hex(16)}-0",
        tenant_id=TRIAL_TENANT,
        adapter=shadow.adapter,
        weight=1.0,
        reserved_share=0.0,
        service_tier=ServiceTier.DEFAULT,
        traceparent=None,
    )


def _num_same(one: str, other: str) -> int:
    """Characters of the longest prefix that both have."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
