"""`python -m app.serve`: one API process, both ports on one event loop.

Knows nothing of routes. Invariant: on a signal it drains (`app.draining`) and then ends, on a
second one it ends at once; it also ends when either server does.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn
import uvloop
from fastapi import FastAPI

from app.adapters.staging import sweep_staging
from app.api import create_admin_app, create_app
from app.context import open_context
from app.draining import Drain
from app.http_protocol import HttpProtocol
from app.logging import configure_logging
from app.settings import Settings
from engine.collector import freeze_startup

log = structlog.get_logger()

SHUTDOWN_GRACE_S = 1  # for what a drain has not waited for
# Longer than proxies keep idle connections (nginx: 60 s): whoever sends must be the one who closes.
KEEP_ALIVE_S = 75


def main() -> None:
    configure_logging("api")
    # pydantic-settings fills the fields from the environment.
    uvloop.run(serve(Settings()))


async def serve(settings: Settings) -> None:
    """Serve until a signal ends it."""
    await asyncio.to_thread(sweep_staging, settings.data_dir, time.time())
    async with open_context(settings) as context:
        servers = [
            _server(create_app(context), settings.host, settings.port),
            _server(create_admin_app(context), settings.host, settings.admin_port),
        ]
        freeze_startup()
        log.info("api_started", port=settings.port, admin_port=settings.admin_port)

        told = asyncio.Event()

        def stop() -> None:
            if told.is_set():
                context.drain.hurry()
            told.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        running = [asyncio.create_task(server.serve()) for server in servers]
        draining = asyncio.create_task(_drain(context.drain, told))
        await asyncio.wait([*running, draining], return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*running)
        log.info("api_stopped")


async def _drain(drain: Drain, told: asyncio.Event) -> None:
    await told.wait()
    log.info("api_draining", num_in_flight=drain.num_in_flight)
    drain.begin()
    await drain.wait()


class _Server(uvicorn.Server):
    """uvicorn's server without its own signal handlers: two of them would undo each other's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(api: FastAPI, host: str, port: int) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            api,
            http=HttpProtocol,
            ws="none",
            host=host,
            port=port,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        )
    )


if __name__ == "__main__":
    main()
