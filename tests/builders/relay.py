"""A TCP relay in front of a server, which a test can cut, silence, strand, slow down or corrupt.

Knows nothing of what is said. Invariant: while silent or slow, bytes are held back, never lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

CHUNK = 65536


class Relay:
    """`async with Relay(lambda: server.port) as relay: connect(relay.port)`."""

    def __init__(self, upstream_port: Callable[[], int]) -> None:
        self._upstream_port = upstream_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._may_speak = asyncio.Event()
        self._may_speak.set()
        self._may_end = asyncio.Event()
        self._may_end.set()
        self._is_cut = False
        self._delay_s = 0.0
        self._num_flips = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._end_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset what is open, and refuse what is new."""
        self._is_cut = True
        self._end_all()

    def silence(self) -> None:
        """Nothing gets through any more, and nothing ends."""
        self._may_speak.clear()

    def strand(self) -> None:
        """What is open stays so and is silent for ever, as after a host's death; what is new is
        well."""
        self._may_speak.clear()
        self._may_speak = asyncio.Event()
        self._may_speak.set()

    def hold_ends(self) -> None:
        """What one side says still gets through, and that it has ended does not."""
        self._may_end.clear()

    def slow_down(self, delay_s: float) -> None:
        """Everything comes that much later, in both directions."""
        self._delay_s = delay_s

    def flip(self, num: int) -> None:
        """In each of the next `num` pieces that pass, one bit is wrong."""
        self._num_flips = num

    def restore(self) -> None:
        self._is_cut = False
        self._delay_s = 0.0
        self._num_flips = 0
        self._may_speak.set()
        self._may_end.set()

    def _end_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port())
        except OSError:
            writer.transport.abort()
            return
        may_speak = self._may_speak
        for source, target in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.create_task(self._copy(source, target, may_speak))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, may_speak: asyncio.Event
    ) -> None:
        try:
            while data := await source.read(CHUNK):
                await may_speak.wait()
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                target.write(self._damaged(data))
                await target.drain()
            await self._may_end.wait()
        except OSError:
            return
        finally:
            target.transport.abort()

    def _damaged(self, data: bytes) -> bytes:
        if self._num_flips == 0:
            return data
        self._num_flips -= 1
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
