"""A request that comes while a row it needs is being changed. Knows nothing of what it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import httpx
from sqlalchemy import text

from app.db import Database
from tests.builders.waiting import eventually

_WAITS = text(
    "SELECT EXISTS (SELECT FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock')"
)


async def answered_after(
    owner_url: str, change: str, asking: Awaitable[httpx.Response], **values: Any
) -> httpx.Response:
    """What `asking` is answered, where the SQL `change` is committed once it waits for that.

    Fails where it is answered without having waited.
    """
    owner = Database(owner_url, pool_size=2)
    try:
        async with owner.session() as changing:
            await changing.execute(text(change), values)
            answer = asyncio.ensure_future(asking)

            async def waits() -> bool:
                assert not answer.done(), "it did not wait for the row"
                async with owner.session() as session:
                    return bool(await session.scalar(_WAITS))

            await eventually(waits)
            await changing.commit()
        return await answer
    finally:
        await owner.close()
