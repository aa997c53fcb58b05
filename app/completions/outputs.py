"""The running sequences of one HTTP request, as one stream of outputs.

Knows nothing of text or of HTTP. Invariants: a sequence is enqueued only when its acceptance has
been committed; when the context ends, however it ends, every sequence that still ran is aborted,
every accepted one is or will be seen to have ended, and every lease is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from functools import partial

from app.adapters.resolver import ResolvedModel
from app.admission.messages import Decision
from app.auth import Principal
from app.completions.admitting import admitted
from app.completions.door import refuse_overload
from app.completions.engine_errors import to_api_error
from app.completions.service_class import ServiceClass
from app.completions.telemetry import traced, watched
from app.context import AppContext
from app.errors import UnavailableError
from app.metrics.answers import AnswerWatch
from app.requests.acceptance import NOT_ENQUEUED
from app.requests.acceptance_repository import NewRequest
from engine.messages import EngineRequest, FinishReason, TokenOutput
from engine.transport.errors import QueueUnavailableError
from engine.transport.output_stream import OutputStream


class Outputs:
    """Outputs of several sequences as they come; each sequence is named by its place."""

    def __init__(
        self, streams: Sequence[OutputStream], decision: Decision, watch: AnswerWatch
    ) -> None:
        self.decision = decision
        self._watch = watch
        self._streams = list(streams)
        self._waiting = {self._wait_for(i): i for i in range(len(streams))}

    async def next(self, timeout_s: float) -> list[tuple[int, TokenOutput]]:
        """What has come, by place; empty when nothing did within `timeout_s`.

        Raises ApiError when a sequence failed.
        """
        done, _ = await asyncio.wait(
            self._waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        arrived = sorted((self._waiting.pop(task), task) for task in done)
        outputs = [(place, _checked(task.result())) for place, task in arrived]
        for place, output in outputs:
            self._watch.took(place, output)
            if output.finish_reason is None:
                self._waiting[self._wait_for(place)] = place
        return outputs

    def close(self, place: int, reason: str = FinishReason.ABORT.value) -> None:
        """No more output of this sequence is wanted: abort it, unless it has ended.

        `reason` is what the ledger says of it.
        """
        for task in [task for task, i in self._waiting.items() if i == place]:
            del self._waiting[task]
            task.cancel()
        if reason == FinishReason.STOP:
            self._watch.ended(place, reason)
        self._streams[place].close(reason)

    def close_all(self, reason: str = FinishReason.ABORT.value) -> None:
        for place in range(len(self._streams)):
            self.close(place, reason)

    def _wait_for(self, place: int) -> asyncio.Task[TokenOutput | None]:
        return asyncio.create_task(_next_or_none(self._streams[place]))


async def _next_or_none(stream: OutputStream) -> TokenOutput | None:
    return await anext(stream, None)


def _checked(output: TokenOutput | None) -> TokenOutput:
    if output is None or output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
        raise to_api_error(None if output is None else output.error)
    return output


@asynccontextmanager
async def running(
    context: AppContext,
    principal: Principal,
    model: ResolvedModel,
    requests: Sequence[EngineRequest],
    num_choices_per_prompt: int,
    asked: ServiceClass,
) -> AsyncIterator[Outputs]:
    """Admit, accept and submit every sequence; their outputs, until the block ends.

    Raises ApiError (429) where a limit refuses it, UnavailableError without queue
    or registry, where too much waits, or where the ledger is far behind.
    """
    async with AsyncExitStack() as stack:
        watch = stack.enter_context(watched(context, model, requests, num_choices_per_prompt))
        if context.queue.usage_backlog > context.settings.max_usage_backlog:
            raise UnavailableError(internal="ledger: no worker takes in what was used")
        with context.turnstile.entering.enter(principal.tenant_id, len(requests)) as entrance:
            await refuse_overload(context, principal, asked, entrance.ahead)
            admission = await stack.enter_async_context(
                admitted(context, principal, model, requests, num_choices_per_prompt)
            )
            rows = [
                _new_request(
                    context,
                    principal,
                    model,
                    request,
                    place % num_choices_per_prompt == 0,
                    admission.record(place),
                )
                for place, request in enumerate(requests)
            ]
            await context.acceptance.accept(rows, is_hurried=context.registry.availability.is_away)
            admission.is_accepted = True
            streams: list[OutputStream] = []
            with _disowning(context, requests, streams):
                for request in requests:
                    stream = await _submit(context, traced(request), asked.queue_timeout_s)
                    entrance.enqueued()
                    streams.append(stack.enter_context(closing(stream)))
        outputs = Outputs(streams, admission.decision, watch)
        stack.callback(outputs.close_all)
        yield outputs


def _new_request(
    context: AppContext,
    principal: Principal,
    model: ResolvedModel,
    request: EngineRequest,
    is_first_choice: bool,
    decision: str,
) -> NewRequest:
    return NewRequest(
        request_id=request.request_id,
        tenant_id=request.tenant_id,
        accepted_at=context.now(),
        api_id=request.api_id,
        key_id=principal.key_id,
        model=model.requested,
        adapter_version_id=model.version_id,
        adapter_digest=model.digest,
        num_prompt_tokens=len(request.prompt_token_ids),
        max_tokens=request.sampling.max_tokens,
        adapter_id=model.adapter_id,
        base_model_id=context.base.model_id,
        service_tier=request.service_tier.value,
        is_first_choice=is_first_choice,
        decision=decision,
    )


@contextmanager
def _disowning(
    context: AppContext, requests: Sequence[EngineRequest], streams: Sequence[OutputStream]
) -> Iterator[None]:
    """Where the block fails, what was accepted and has no stream has ended too.

    If it was cancelled, its client has gone, as it does from the queue a moment later.
    """
    reason = NOT_ENQUEUED
    try:
        yield
    except asyncio.CancelledError:
        reason = FinishReason.ABORT.value
        raise
    finally:
        for request in requests[len(streams) :]:
            context.queue.disown(request, reason)


async def _submit(
    context: AppContext, request: EngineRequest, queue_timeout_s: float
) -> OutputStream:
    try:
        return await context.redis.ask(
            partial(context.queue.submit, request, queue_timeout_s=queue_timeout_s)
        )
    except asyncio.CancelledError:
        # It may have been submitted by now: then nobody else has its stream.
        context.queue.abort(request.request_id)
        raise
    except QueueUnavailableError as error:
        raise UnavailableError(internal=str(error)) from error
