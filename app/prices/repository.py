"""The SQL of prices.

Knows nothing of rules. Invariant: a price is never changed: what it says of an hour stays.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func, select
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

    async def is_priced(self, price: Price, until: datetime) -> bool:
        """Whether there is a price already for an hour in which this new one would be in force.

        Of the hours from its `effective_at` to `until`; it would be until the next of its own kind.
        """
        is_own = Price.tenant_id.is_not_distinct_from(price.tenant_id)
        is_of_base = Price.base_model_id == price.base_model_id
        next_own = (
            select(func.min(Price.effective_at))
            .where(is_of_base, is_own, Price.effective_at > price.effective_at)
            .scalar_subquery()
        )
        query = select(Price.id).where(
            is_of_base,
            is_own | Price.tenant_id.is_(None),
            Price.effective_at <= until,
            next_own.is_(None) | (Price.effective_at < next_own),
        )
        return await self._session.scalar(query.limit(1)) is not None

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
