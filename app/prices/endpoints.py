"""`/admin/v1/prices`: operators keep the price book."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.audit.trail import Trail
from app.auth import require_operator
from app.bodies import Deleted
from app.context import Context
from app.etags import IfMatch
from app.idempotency.once import Once
from app.pages import Page, Paging
from app.prices import service
from app.prices.schemas import PriceCreate, PriceView
from app.session import RequestSession

router = APIRouter(prefix="/prices", dependencies=[Depends(require_operator)])


@router.post("", status_code=201)
async def create_price(
    body: PriceCreate, session: RequestSession, context: Context, trail: Trail, once: Once
) -> PriceView:
    price = await service.create_price(session, body, context.base.model_id, trail)
    return await once.keep(PriceView.of(price))


@router.get("")
async def list_prices(session: RequestSession, paging: Paging) -> Page[PriceView]:
    rows = await service.list_prices(session, paging)
    return paging.page(rows, PriceView.of)


@router.get("/{price}")
async def get_price(price: str, session: RequestSession) -> PriceView:
    return PriceView.of(await service.find_price(session, price))


@router.delete("/{price}")
async def delete_price(
    price: str, session: RequestSession, trail: Trail, if_match: IfMatch = None
) -> Deleted:
    deleted = await service.delete_price(session, price, trail, if_match=if_match)
    return Deleted(id=deleted.id, object="price")
