"""The running sequences of one HTTP request, as one stream of outputs.

Knows nothing of text or of HTTP. Invariant: when the context ends, however it ends, every sequence
that still ran is aborted and every lease is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing

from app.auth import Principal
from app.completions.engine_errors import to_api_error
from app.context import AppContext
from app.errors import UnavailableError
from engine.messages import EngineRequest, FinishReason, TokenOutput
from engine.transport.errors import QueueUnavailableError
from engine.transport.output_stream import OutputStream


class Outputs:
    """Outputs of several sequences as they come; each sequence is named by its place."""

    def __init__(self, streams: Sequence[OutputStream]) -> None:
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
            if output.finish_reason is None:
                self._waiting[self._wait_for(place)] = place
        return outputs

    def close(self, place: int) -> None:
        """No more output of this sequence is wanted: abort it, unless it has ended."""
        for task in [task for task, i in self._waiting.items() if i == place]:
            del self._waiting[task]
            task.cancel()
        self._streams[place].close()

    def close_all(self) -> None:
        for place in range(len(self._streams)):
            self.close(place)

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
    context: AppContext, principal: Principal, requests: Sequence[EngineRequest]
) -> AsyncIterator[Outputs]:
    """Admit and submit every sequence; their outputs, until the block ends.

    Raises RateLimitedError where a limit of the tenant is reached, UnavailableError without queue.
    """
    async with AsyncExitStack() as stack:
        for request in requests:
            # Released even where acquiring was cut short: the lease may have been written.
            stack.push_async_callback(
                context.admission.release, principal.tenant_id, request.request_id
            )
            await context.admission.acquire(
                principal.tenant_id,
                request.request_id,
                concurrency_limit=principal.concurrency_limit,
                queue_depth_limit=principal.queue_depth_limit,
            )
        streams = [
            stack.enter_context(closing(await _submit(context, request))) for request in requests
        ]
        outputs = Outputs(streams)
        stack.callback(outputs.close_all)
        yield outputs


async def _submit(context: AppContext, request: EngineRequest) -> OutputStream:
    try:
        return await context.queue.submit(request)
    except QueueUnavailableError as error:
        raise UnavailableError(code="queue_unavailable", internal=str(error)) from error
