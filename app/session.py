"""The registry session of one request, committed by the dependency and by nothing else.

Knows nothing of rows. Invariant: a request that ends in an error leaves no trace; one that is
answered is committed *before* the answer is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy.ext.asyncio import AsyncSession

from app.context import AppContext, get_context


async def get_session(
    context: Annotated[AppContext, Depends(get_context)],
) -> AsyncIterator[AsyncSession]:
    async with context.database.session() as session:
        yield session
        await session.commit()


# NOTE: without scope="function" FastAPI would commit after the response had gone out.
RequestSession = Annotated[AsyncSession, Depends(get_session, scope="function")]
