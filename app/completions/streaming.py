"""Answers as server-sent events, and the response that carries them.

Knows nothing of models or of admission. Invariants: nothing is acquired before the first frame is
asked for, so an error until then is an ordinary HTTP error; after it, an error is a frame. When
the client goes, or does not read, the source of the frames is closed before the response ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress

import msgspec
import structlog
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.completions.choice import Delta
from app.completions.connection import (
    ClientGoneError,
    ClientTooSlowError,
    client_is_gone,
    hand_over,
    while_connected,
)
from app.completions.service import Answer
from app.completions.shapes import Shape
from app.errors import ApiError
from app.http_protocol import cut

log = structlog.get_logger()

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def frame(value: object) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"


async def frames(
    shape: Shape, answer: Answer, generated: AsyncGenerator[list[Delta], None]
) -> AsyncGenerator[bytes, None]:
    """The events of a stream. An ApiError before the first is raised; a later one is the last.

    A ClientTooSlowError that is thrown in here is passed on to what generates.
    """
    is_open = False
    async with aclosing(generated):
        try:
            async for deltas in generated:
                chunks = [] if is_open else shape.opening(len(answer.choices))
                is_open = True
                for delta in deltas:
                    chunks += shape.chunks(delta)
                if chunks:
                    yield b"".join(map(frame, chunks))
                elif not deltas:
                    yield KEEPALIVE
        except ClientTooSlowError as error:
            with suppress(ClientTooSlowError):
                await generated.athrow(error)
            raise
        except ApiError as error:
            if not is_open:
                raise
            log.warning("stream_failed", code=error.code, detail=error.internal)
            yield frame(error.body())
            return
        yield b"".join(map(frame, shape.closing(answer.usage()))) + DONE


class EventStreamResponse(Response):
    """Sends `frames`. The headers are asked for when the first frame is there, and go with it.

    A client that has taken nothing for `stall_timeout_s`, while all that may wait for it does, is
    cut off.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        headers: Callable[[], Mapping[str, str]],
        *,
        stall_timeout_s: float,
    ) -> None:
        super().__init__()
        self._frames = frames
        self._headers_now = headers
        self._stall_timeout_s = stall_timeout_s
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._frames):
            try:
                await while_connected(receive, self._send_all(send))
            except ClientGoneError:
                if not self._has_started:
                    raise
                log.info("client_gone")
            except ClientTooSlowError as error:
                log.warning(error.code)
                cut(scope)
                await client_is_gone(receive)

    async def _send_all(self, send: Send) -> None:
        async for data in self._frames:
            if not self._has_started:
                headers = Headers({**self._headers_now(), **STREAM_HEADERS})
                start = {"type": "http.response.start", "status": 200, "headers": headers.raw}
                # It waits as well: for an answer before it on this connection that nobody reads.
                await self._hand_over(send, start)
                self._has_started = True
            await self._hand_over(
                send, {"type": "http.response.body", "body": data, "more_body": True}
            )
        await self._hand_over(send, {"type": "http.response.body", "body": b""})

    async def _hand_over(self, send: Send, message: Message) -> None:
        try:
            await hand_over(send, message, self._stall_timeout_s)
        except ClientTooSlowError as error:
            with suppress(StopAsyncIteration):
                await self._frames.athrow(error)
            raise error from None
