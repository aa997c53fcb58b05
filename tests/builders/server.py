"""A real HTTP server for an application, on a free port. Knows nothing of what it serves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from app.http_protocol import HttpProtocol
from tests.builders.waiting import until


@asynccontextmanager
async def serving(app: ASGIApp, *, send_buffer: int | None = None) -> AsyncIterator[str]:
    """The base URL, `http://127.0.0.1:PORT`, while the block runs.

    send_buffer: bytes that the kernel keeps for a client that does not read.
    """
    config = uvicorn.Config(
        app, http=HttpProtocol, ws="none", lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if send_buffer is not None:  # whoever is accepted inherits it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started or task.done())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True  # a test that failed half-way may have left a stream open
            await task
