"""The SQL of prices.

Knows nothing of rules. Invariant: a price is never changed: what it says of an hour stays.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.pages import PageQuery
from app.prices.tables import Price


class PriceRepository:
    """All prices; the session is in the operator's scope."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, price: Price) -> bool:
        """False where there is one for the same base and tenant from the same hour on."""
        columns = {
            column.key: getattr(price, column.key)
            for column in Price.__table__.columns
            if column.key != "created_at"
        }
        added = await self._session.scalar(
            insert(Price).values(columns).on_conflict_do_nothing().returning(Price.created_at)
        )
        if added is None:
            return False
        price.created_at = added
        return True

    async def get(self, price_id: str) -> Price | None:
        return await self._session.scalar(select(Price).where(Price.id == price_id))

    async def list_page(self, page: PageQuery) -> list[Price]:
        query = page.narrow(select(Price), Price.id)
        return list(await self._session.scalars(query))

    async def remove(self, price_id: str) -> None:
        await self._session.execute(delete(Price).where(Price.id == price_id))


async def price_in_force(
    session: AsyncSession, tenant_id: str, base_model_id: str, at: datetime
) -> Price | None:
    """What the tenant pays at that time: its own price, else everybody's.

    In the tenant's scope, the ledger's or billing's.
    """
    return await session.scalar(
        select(Price)
        .where(
            Price.base_model_id == base_model_id,
            Price.effective_at <= at,
            Price.tenant_id.is_(None) | (Price.tenant_id == tenant_id),
        )
        .order_by(Price.tenant_id.nulls_last(), Price.effective_at.desc())
        .limit(1)
    )
