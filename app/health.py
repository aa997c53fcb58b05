"""Is the process alive, and can it serve: what Kubernetes asks.

Knows nothing of tenants. Invariant: `/livez` asks nobody else; `/readyz` is 200 only while the
queue, at least one engine and the registry answer, or what the registry said a moment ago is held,
and never where its schema is older than this code; it always answers within its time-out.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from app.auth import public
from app.context import AppContext, Context
from app.errors import UnavailableError
from app.promptly import promptly
from app.schema_repository import read_schema
from engine.transport.errors import QueueUnavailableError

CHECK_TIMEOUT_S = 1.0

router = APIRouter(dependencies=[Depends(public)])


@router.get("/livez")
async def livez() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(
    context: Context,
    engines: Literal["required", "optional"] = "required",
) -> JSONResponse:
    """`engines=optional`: what engines and their queue do is not this process's to be judged by."""
    if context.drain.is_draining:
        return JSONResponse({"status": "draining"}, status_code=503)
    (registry, reason), num_engines = await asyncio.gather(
        _registry(context), _live_engines(context)
    )
    checks: dict[str, Any] = {
        "registry": registry,
        "queue": "ok" if num_engines is not None else "unreachable",
        "engines": num_engines or 0,
    }
    has_engines = bool(num_engines) or engines == "optional"
    is_ready = registry in ("ok", "snapshot") and has_engines
    body = {"status": "ready" if is_ready else "unavailable", "checks": checks} | reason
    return JSONResponse(body, status_code=200 if is_ready else 503)


async def _registry(context: AppContext) -> tuple[str, dict[str, str]]:
    """How it is, and a reason where that needs one."""
    try:
        schema = await promptly(read_schema(context.database), CHECK_TIMEOUT_S)
    except UnavailableError:
        return ("snapshot" if context.registry.is_held else "unreachable"), {}
    return schema.verdict


async def _live_engines(context: AppContext) -> int | None:
    """How many engines have a fresh heartbeat; None where the queue does not answer."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await context.queue.num_engines()
    except (QueueUnavailableError, TimeoutError):
        return None
