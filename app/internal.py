"""What the platform asks on the admin port: to drain, and how many engines are wanted.

Knows nothing of tenants. Invariant: all of it is the operator's.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from app.auth import require_operator
from app.context import AppContext, Context
from app.errors import UnavailableError
from engine.transport.errors import QueueUnavailableError

router = APIRouter(prefix="/internal", dependencies=[Depends(require_operator)])


class DrainStatus(BaseModel):
    is_draining: bool
    is_drained: bool
    num_in_flight: int


@router.post("/drain")
async def begin_drain(context: Context) -> DrainStatus:
    """Begin to drain. Repeat it, or GET, until `is_drained`; then the process may be stopped."""
    context.drain.begin()
    return _status(context)


@router.get("/drain")
async def read_drain(context: Context) -> DrainStatus:
    return _status(context)


class ScalingStatus(BaseModel):
    """`wanted`: the least number of engines; 0 where nothing waits and nothing runs."""

    queued_requests: int
    running_requests: int
    queued_tokens: int
    oldest_wait_s: float
    engines: int
    wanted: int


@router.get("/scaling")
async def read_scaling(context: Context) -> ScalingStatus:
    """What an autoscaler of engines asks, also where there is no engine."""
    try:
        demand, num_engines = await asyncio.gather(
            context.queue.demand(), context.queue.num_engines()
        )
    except QueueUnavailableError as error:
        raise UnavailableError(internal=f"queue: {error}") from error
    return ScalingStatus(
        queued_requests=demand.num_queued,
        running_requests=demand.num_running,
        queued_tokens=demand.queued_tokens,
        oldest_wait_s=demand.oldest_wait_s,
        engines=num_engines,
        wanted=demand.wanted,
    )


def _status(context: AppContext) -> DrainStatus:
    drain = context.drain
    return DrainStatus(
        is_draining=drain.is_draining,
        is_drained=drain.is_over,
        num_in_flight=drain.num_in_flight,
    )
