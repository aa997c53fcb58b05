"""This side of one process that renders one template (`app.chat_templates.child`).

Knows nothing of what is rendered. Invariants: one task at a time; whoever was not heard out is not
asked again; what a process says is believed only as far as it can be read as an answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from app.adapters.zygote import ZygoteError
from app.chat_templates.messages import (
    DEADLINE_S,
    LENGTH_BYTES,
    Answer,
    Setup,
    frame,
)

START_S = 30.0  # the first one waits for the process that makes them
GRACE_S = 2.0
MAX_ESCAPED_BYTES = 6  # of a character as JSON has it
MAX_REST_BYTES = 10_000  # of an answer without its text


class ProcessEndedError(Exception):
    """It ended, or was ended by one of its limits, without an answer."""


class SandboxError(Exception):
    """No process could be made: our own failure, and no template's."""


class TemplateProcess:
    """Greeted, and set up. Its owner closes it, after each error too."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._is_new = True

    @classmethod
    async def start(
        cls, connect: Callable[[], Awaitable[socket.socket]], setup: Setup
    ) -> TemplateProcess:
        """connect: as `Zygote.connect`, off the event loop. Raises SandboxError."""
        try:
            connection = await connect()
            reader, writer = await asyncio.open_unix_connection(sock=connection)
        except (ZygoteError, OSError) as error:
            raise SandboxError(str(error)) from error
        process = cls(reader, writer)
        try:
            async with asyncio.timeout(START_S):
                await process._read(0)
            writer.write(frame(msgspec.json.encode(setup)))
        except (TimeoutError, ProcessEndedError) as error:
            process.close()
            raise SandboxError(f"no greeting: {error!r}") from error
        except BaseException:
            process.close()
            raise
        return process

    async def ask(self, task: bytes, max_chars: int) -> Answer:
        """Raises ProcessEndedError."""
        limit_s = DEADLINE_S * (2 if self._is_new else 1) + GRACE_S
        self._is_new = False
        try:
            async with asyncio.timeout(limit_s):
                self._writer.write(frame(task))
                await self._writer.drain()
                content = await self._read(MAX_ESCAPED_BYTES * max_chars + MAX_REST_BYTES)
            return msgspec.json.decode(content, type=Answer)
        except (TimeoutError, ConnectionError, ValueError, msgspec.MsgspecError) as error:
            raise ProcessEndedError(repr(error)) from error

    def close(self) -> None:
        """It ends as soon as it has nothing to do."""
        with suppress(RuntimeError):  # the event loop is gone already
            self._writer.close()

    async def _read(self, max_bytes: int) -> bytes:
        try:
            head = await self._reader.readexactly(LENGTH_BYTES)
            num_bytes = int.from_bytes(head, "big")
            if num_bytes > max_bytes:
                raise ProcessEndedError(f"an answer of {num_bytes} bytes")
            return await self._reader.readexactly(num_bytes)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ProcessEndedError(repr(error)) from error
