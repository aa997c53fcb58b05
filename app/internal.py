"""What the platform asks on the admin port: to drain, and how many engines are wanted.

Knows nothing of tenants. Invariant: all of it is the operator's.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from app.auth import require_operator
from app.context import AppContext, get_context

router = APIRouter(prefix="/internal", dependencies=[Depends(require_operator)])
Context = Annotated[AppContext, Depends(get_context)]


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


def _status(context: AppContext) -> DrainStatus:
    drain = context.drain
    return DrainStatus(
        is_draining=drain.is_draining,
        is_drained=drain.is_over,
        num_in_flight=drain.num_in_flight,
    )
