"""A real HTTP server for an application, on a free port. Knows nothing of what it serves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from tests.builders.waiting import until


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """The base URL, `http://127.0.0.1:PORT`, while the block runs."""
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started or task.done())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True  # a test that failed half-way may have left a stream open
            await task
