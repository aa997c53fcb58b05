"""What may be done with prices.

Knows nothing of HTTP. Invariants: prices begin at whole hours, so that roll-ups by the hour can be
priced exactly; a price that was ever in force stays, and what was used keeps its price: one that is
set for the past prices only what had none.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from app.audit.trail import AuditTrail
from app.db import operator_scope, tenant_scope
from app.errors import ConflictError, NotFoundError, UnprocessableError
from app.etags import check_etag
from app.ids import new_id
from app.pages import PageQuery
from app.prices.repository import PriceRepository
from app.prices.schemas import PriceCreate, PriceView
from app.prices.tables import Price
from app.tenants.service import find_tenant

HOUR = timedelta(hours=1)
_PRICE_ID = re.compile(r"prc_[0-9a-z]{26}")


async def create_price(
    session: AsyncSession, body: PriceCreate, served_base: str, trail: AuditTrail
) -> Price:
    """From `body.effective_at` on, else the hour that runs, or where that has a price the next.

    Raises NotFoundError, UnprocessableError (not a whole hour), ConflictError (`price_conflict`,
    `price_in_force`).
    """
    effective_at = _whole_hour(trail.at)
    if body.effective_at is not None:
        effective_at = datetime.fromtimestamp(body.effective_at, UTC)
    if effective_at != _whole_hour(effective_at):
        raise UnprocessableError(
            "A price begins at a whole hour (UTC).", code="not_a_whole_hour", param="effective_at"
        )
    tenant_id = None if body.tenant is None else (await find_tenant(session, body.tenant)).id
    await operator_scope(session)
    price = Price(
        id=new_id("prc"),
        tenant_id=tenant_id,
        base_model_id=body.base_model or served_base,
        currency=body.currency,
        input_price=body.input,
        cached_price=body.input if body.cached is None else body.cached,
        output_price=body.output,
        effective_at=effective_at,
    )
    prices = PriceRepository(session)
    if effective_at <= trail.at and await prices.is_priced(price, trail.at):
        if body.effective_at is not None:
            raise ConflictError(
                "What was used since then has a price already, and keeps it. Set this one for the"
                " next hour or later.",
                code="price_in_force",
                param="effective_at",
            )
        price.effective_at += HOUR
    if not await prices.add(price):
        raise ConflictError(
            "There is a price for this base and tenant from that hour on.",
            code="price_conflict",
            param="effective_at",
        )
    await _record(session, trail, "price.created", price, after=PriceView.of(price))
    return price


async def find_price(session: AsyncSession, price_id: str) -> Price:
    """Raises NotFoundError."""
    await operator_scope(session)
    price = None
    if _PRICE_ID.fullmatch(price_id):
        price = await PriceRepository(session).get(price_id)
    if price is None:
        raise NotFoundError("No such price.", param="price")
    return price


async def list_prices(session: AsyncSession, page: PageQuery) -> list[Price]:
    await operator_scope(session)
    return await PriceRepository(session).list_page(page)


async def delete_price(
    session: AsyncSession, price_id: str, trail: AuditTrail, *, if_match: str | None = None
) -> Price:
    """Take back a price that is not in force yet.

    Raises NotFoundError, ConflictError, and as `check_etag`.
    """
    price = await find_price(session, price_id)
    check_etag(PriceView.of(price).etag, if_match)  # nothing is locked: no price ever changes
    if price.effective_at <= trail.at:
        raise ConflictError(
            "The price has been in force; another one can follow it.", code="price_in_force"
        )
    await PriceRepository(session).remove(price.id)
    await _record(session, trail, "price.deleted", price, before=PriceView.of(price))
    return price


async def _record(
    session: AsyncSession,
    trail: AuditTrail,
    action: str,
    price: Price,
    *,
    before: PriceView | None = None,
    after: PriceView | None = None,
) -> None:
    """In the log of whom it is for. Leaves the session in that scope."""
    if price.tenant_id is None:
        await trail.record_for_fleet(session, action, price.id, before=before, after=after)
        return
    await tenant_scope(session, price.tenant_id)
    await trail.record(session, price.tenant_id, action, price.id, before=before, after=after)


def _whole_hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
