"""A worker's port for Kubernetes and Prometheus: `/livez`, `/readyz`, `/metrics`.

Knows nothing of the worker's work. Invariant: `/livez` asks nobody else, so that an outage of
Postgres or Redis restarts no worker; `/readyz` answers within `CHECK_TIMEOUT_S`, and says why where
the registry's schema is older than this code.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.db import Database
from app.errors import UnavailableError
from app.metrics.worker import WorkerMetrics
from app.schema_repository import read_schema
from engine.exposition import CONTENT_TYPE

CHECK_TIMEOUT_S = 1.0


def create_health_app(database: Database, metrics: WorkerMetrics) -> Starlette:
    async def livez(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        registry, reason = await _registry(database)
        is_ready = registry == "ok"
        body = {"status": "ready" if is_ready else "unavailable"}
        checks = {"registry": registry}
        answer = body | {"checks": checks} | reason
        return JSONResponse(answer, status_code=200 if is_ready else 503)

    async def render(_: Request) -> Response:
        await metrics.look()
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", render)]
    )


@asynccontextmanager
async def health_port(
    host: str, port: int | None, database: Database, metrics: WorkerMetrics
) -> AsyncIterator[None]:
    """Serve on `port` until the block ends; nothing where it is None."""
    if port is None:
        yield
        return
    server = _Server(
        uvicorn.Config(
            create_health_app(database, metrics),
            host=host,
            port=port,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
    serving = asyncio.create_task(server.serve(), name="health")
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """Without signal handlers: they are the worker's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _registry(database: Database) -> tuple[str, dict[str, str]]:
    """How it is, and a reason where that needs one."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return (await read_schema(database)).verdict
    except (UnavailableError, TimeoutError):
        return "unreachable", {}
