"""One request's output, as the API waits for it.

Knows nothing of Redis: the client's reader pushes, one consumer iterates. Invariant: tokens come
out once each and in order, whatever arrives twice or late, and all that follow a token were drawn
after it: what an engine says that lost the request is not taken any more. The stream always ends,
the last output carries a finish_reason, and nothing follows it. Pushing never waits for the
consumer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Self

import msgspec

from engine.messages import EngineError, EngineRequest, FinishReason, TokenOutput

MAX_BUFFERED_TOKENS = 1024
MAX_BUFFERED_OUTPUTS = 16
"""More are joined: a reader that does not read costs next to nothing but its tokens."""
_FAILURES = (FinishReason.ABORT, FinishReason.ERROR)


class Adrift(StrEnum):
    """Why no engine goes on with a request, though it has not ended."""

    DIED = "died"
    HANDED_OVER = "handed_over"
    LOST = "lost"
    """Redis lost it, or its last output."""
    TORN = "torn"
    """A hole in the tokens, or two engines that tell of one lease."""


class OutputStream:
    """`async with stream: async for output in stream`. Closing it early aborts the request.

    Errors arrive as a last output with `finish_reason` ERROR and an `error`; the code made here is
    `client_too_slow` (nobody reads).
    """

    def __init__(
        self,
        request: EngineRequest,
        *,
        on_end: Callable[[OutputStream, bool], None],
        now: float = 0.0,
        queue_timeout_s: float | None = None,
        max_buffered_tokens: int = MAX_BUFFERED_TOKENS,
    ) -> None:
        """`on_end(stream, must_abort)` is called once, when no more output is wanted."""
        self.request = request
        self.request_id = request.request_id
        self.engine_id: str | None = None  # whose output came last, unless it lost the request
        self.epoch = request.epoch  # older output is not taken
        self.adrift: Adrift | None = None
        self.num_torn = 0  # times since the last token
        self.is_enqueued = False
        self.is_finished = False
        self.ending: str | None = None  # why this process ended it; None where its engine did
        self.num_cached_tokens = 0
        self.num_reasoning_tokens = request.num_reasoning_tokens
        """Of the tokens that came here."""
        self.last_output_at = now
        self.queue_timeout_s = queue_timeout_s
        self.deadline_at = None if queue_timeout_s is None else now + queue_timeout_s
        self.unknown_since: float | None = None
        self._on_end = on_end
        self._max_buffered_tokens = max_buffered_tokens
        self._token_ids = list(request.delivered_token_ids)
        self._held: list[tuple[TokenOutput, str]] | None = None
        self._buffer: deque[TokenOutput] = deque()
        self._num_buffered_tokens = 0
        self._has_news = asyncio.Event()

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the answer that came here, with those of earlier engines."""
        return list(self._token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    def hold(self) -> None:
        """Take nothing until `resume` or `move`: the tokens that came are being written down."""
        if self._held is None:
            self._held = []

    def resume(self, now: float) -> None:
        """Nobody else was given the request: take what came meanwhile."""
        self.adrift = None
        held, self._held = self._held or [], None
        for output, engine_id in held:
            self.push(output, engine_id, now)

    def move(self, request: EngineRequest, now: float, deadline_at: float) -> None:
        """`request`, with the tokens that came here, is in the queue: take only its output."""
        self.request = request
        self.epoch = request.epoch + 1  # the next lease's
        self.engine_id = None
        self.last_output_at = now
        self.unknown_since = None
        self.deadline_at = deadline_at
        self.resume(now)

    def push(self, output: TokenOutput, engine_id: str, now: float) -> None:
        """Take what is new in `output`; drop what is known, and what an old epoch still says."""
        if self._held is not None:
            self._held.append((output, engine_id))
            return
        if self.is_finished or self.adrift is not None or output.epoch < self.epoch:
            return
        if output.epoch == self.epoch and self.engine_id not in (None, engine_id):
            self._tear()
            return
        self.epoch = output.epoch
        self.engine_id = engine_id
        self.last_output_at = now
        self.unknown_since = None
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        if output.finish_reason is FinishReason.HAND_OVER:
            self.adrift = Adrift.HANDED_OVER
        elif output.index > self.num_tokens and output.finish_reason not in _FAILURES:
            self._tear()
        else:
            self._take(output)

    def _take(self, output: TokenOutput) -> None:
        fresh = output.token_ids[max(0, self.num_tokens - output.index) :]
        if not fresh and output.finish_reason is None:
            return
        if self._num_buffered_tokens >= self._max_buffered_tokens and output.finish_reason is None:
            self.fail("client_too_slow", "The client does not read its stream.", must_abort=True)
            return
        self._append(msgspec.structs.replace(output, index=self.num_tokens, token_ids=fresh))
        if output.finish_reason not in _FAILURES:  # they tell of tokens that may never have come
            self.num_reasoning_tokens = max(self.num_reasoning_tokens, output.num_reasoning_tokens)
        if output.finish_reason is not None:
            self._end(must_abort=False)

    def _tear(self) -> None:
        self.adrift = Adrift.TORN
        self.num_torn += 1

    def fail(self, code: str, message: str, *, must_abort: bool) -> None:
        """End the stream with an error, after what is buffered."""
        if self.is_finished:
            return
        self._append(
            TokenOutput(
                request_id=self.request_id,
                epoch=self.epoch,
                index=self.num_tokens,
                token_ids=[],
                num_prompt_tokens=len(self.request.prompt_token_ids),
                num_generated_tokens=self.num_tokens,
                finish_reason=FinishReason.ERROR,
                error=EngineError(code=code, message=message),
            )
        )
        self._end(must_abort=must_abort, ending=code)

    def close(self, reason: str = FinishReason.ABORT.value) -> None:
        """No more output is wanted. Never waits, so it is safe in a cancelled task."""
        self._buffer.clear()
        self._num_buffered_tokens = 0
        self._end(must_abort=True, ending=reason)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenOutput:
        while not self._buffer:
            if self.is_finished:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
        output = self._buffer.popleft()
        self._num_buffered_tokens -= len(output.token_ids)
        return output

    def _append(self, output: TokenOutput) -> None:
        if output.token_ids:
            self._token_ids += output.token_ids
            self.num_torn = 0
        self._num_buffered_tokens += len(output.token_ids)
        if len(self._buffer) >= MAX_BUFFERED_OUTPUTS and _may_join(self._buffer[-1], output):
            output = _joined(self._buffer.pop(), output)
        self._buffer.append(output)
        self._has_news.set()

    def _end(self, *, must_abort: bool, ending: str | None = None) -> None:
        if self.is_finished:
            return
        self.ending = ending
        self.is_finished = True
        self._has_news.set()
        self._on_end(self, must_abort)


def _may_join(last: TokenOutput, output: TokenOutput) -> bool:
    """Whether nothing is lost where a reader gets both as one."""
    is_plain = last.evidence is None and output.evidence is None
    return is_plain and last.finish_reason is None and output.finish_reason not in _FAILURES


def _joined(last: TokenOutput, output: TokenOutput) -> TokenOutput:
    return msgspec.structs.replace(
        output,
        index=last.index,
        token_ids=[*last.token_ids, *output.token_ids],
        num_cached_tokens=max(last.num_cached_tokens, output.num_cached_tokens),
        adapter_load_ms=max(last.adapter_load_ms, output.adapter_load_ms),
    )
