"""The registry session of one request, committed by the dependency and by nothing else.

Knows nothing of rows. Invariant: a request that ends in an error leaves no trace; one that is
answered is committed *before* the answer is sent, and what it revoked has then been announced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy.ext.asyncio import AsyncSession

from app.context import Context

_REVOKES = "revokes"


def principals_changed(session: AsyncSession) -> None:
    """What a tenant or a key may do changes with this session's commit."""
    session.info[_REVOKES] = True


async def get_session(context: Context) -> AsyncIterator[AsyncSession]:
    async with context.database.session() as session:
        yield session
        await session.commit()
        if session.info.pop(_REVOKES, False):
            await context.revocations.announce()


# NOTE: without scope="function" FastAPI would commit after the response had gone out.
RequestSession = Annotated[AsyncSession, Depends(get_session, scope="function")]
