"""Watches one answer as it is made, for the gates of rollouts and for comparison with a shadow; and
that there was a prompt at all, where a version makes it through a template of its own.

Knows nothing of gates. Invariants: what is watched is passed on as it came, at once; a request that
its client left is no sample; a sample is written after the answer, and nobody waits for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from app.adapters.resolver import ResolvedModel
from app.chat_templates.versions import TEMPLATE_FAILED
from app.completions.choice import Delta
from app.completions.connection import ClientTooSlowError
from app.completions.service import Answer
from app.context import AppContext
from app.errors import ApiError
from app.promptly import done_or_left
from app.rollouts.gates import Sample
from app.rollouts.shadowing import MAX_WATCHED_CHARS, Reprompt

SERVER_ERROR = 500
# What tells nothing of a version: the other one would have been answered so too.
NOBODYS_FAULT = frozenset(
    {"dependency_unavailable", "overloaded", "queue_unavailable", "server_shutting_down"}
)


@dataclass(slots=True)
class _Watch:
    """Of one answer; choices and chunks are taken together."""

    started_at: float = field(default_factory=time.perf_counter)
    first_at: float | None = None
    last_at: float | None = None
    num_chunks: int = 0
    chunks: dict[int, list[str]] = field(default_factory=dict)
    num_chars: dict[int, int] = field(default_factory=dict)

    def take(self, deltas: list[Delta]) -> None:
        shown = [delta for delta in deltas if delta.text]
        if not shown:
            return
        self.last_at = time.perf_counter()
        self.first_at = self.first_at or self.last_at
        self.num_chunks += 1
        for delta in shown:
            before = self.num_chars.get(delta.choice, 0)
            if before <= MAX_WATCHED_CHARS:
                self.chunks.setdefault(delta.choice, []).append(delta.text)
                self.num_chars[delta.choice] = before + len(delta.text)

    def text(self, choice: int) -> str:
        """What it says, up to some character past `MAX_WATCHED_CHARS`."""
        return "".join(self.chunks.get(choice, ()))

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_at is None else 1e3 * (self.first_at - self.started_at)

    @property
    def inter_token_ms(self) -> float | None:
        """From the first text to the last, over the times that something came in between."""
        if self.first_at is None or self.last_at is None or self.num_chunks < 2:
            return None
        return 1e3 * (self.last_at - self.first_at) / (self.num_chunks - 1)

    @property
    def is_json(self) -> bool | None:
        if not self.chunks or any(num > MAX_WATCHED_CHARS for num in self.num_chars.values()):
            return None
        return all(_is_json(self.text(choice)) for choice in self.chunks)


async def observed_prompt(
    context: AppContext, model: ResolvedModel, prompting: Awaitable[list[int]]
) -> list[int]:
    """What `prompting` gives; where the version's own template gives none, that is its error.

    Raises what `prompting` does.
    """
    watch = _Watch()
    try:
        return await prompting
    except ApiError as error:
        if error.code == TEMPLATE_FAILED or _is_versions_fault(error):
            await _record(context, model, watch, is_error=True)
        raise


async def observed(
    context: AppContext,
    answer: Answer,
    stops: Sequence[str],
    generated: AsyncGenerator[list[Delta], None],
    reprompt: Reprompt | None = None,
) -> AsyncGenerator[list[Delta], None]:
    """`generated` as it is; its first sequence runs on the model's shadow too, if it has one.

    reprompt: of `app.completions.conversation.shadow_prompt`.
    """
    watch, shadow = _Watch(), answer.model.shadow
    run = None
    if shadow is not None:
        run = context.shadows.begin(shadow, answer.requests[0], stops, reprompt)
    is_whole = False
    try:
        async with aclosing(generated):
            try:
                async for deltas in generated:
                    watch.take(deltas)
                    yield deltas
            except ClientTooSlowError as error:
                with suppress(ClientTooSlowError):
                    await generated.athrow(error)
                raise
            except ApiError as error:
                if _is_versions_fault(error):
                    await _record(context, answer.model, watch, is_error=True)
                raise
        is_whole = True
    finally:
        if run is not None and not is_whole:
            run.cancel()
    if shadow is not None and run is not None:
        context.shadows.compare(shadow, watch.text(0), run)
    num_tokens = answer.usage().completion_tokens
    await _record(context, answer.model, watch, num_tokens=num_tokens)


async def _record(
    context: AppContext,
    model: ResolvedModel,
    watch: _Watch,
    *,
    is_error: bool = False,
    num_tokens: int = 0,
) -> None:
    """For the gates, where the alias means several versions."""
    if model.weighted_alias is None or context.redis.is_away:
        return
    assert model.adapter_id is not None and model.version_id is not None
    sample = Sample(
        at_s=context.now().timestamp(),
        version_id=model.version_id,
        is_error=is_error,
        ttft_ms=watch.ttft_ms,
        inter_token_ms=watch.inter_token_ms,
        num_tokens=num_tokens,
        is_json=watch.is_json,
    )
    work = context.samples.record(model.adapter_id, model.weighted_alias, sample)
    await done_or_left(work, 0)


def _is_versions_fault(error: ApiError) -> bool:
    return error.status >= SERVER_ERROR and error.code not in NOBODYS_FAULT


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
