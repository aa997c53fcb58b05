"""Keys over REST, twice: for operators and, at `/v1/keys`, for keys with `keys:write`.

Knows no rules and no SQL. Invariant: both routers call the same functions; a tenant's are bounded
by the key that asks.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from app.api_keys import service
from app.api_keys.repository import ApiKeyRepository
from app.api_keys.schemas import KeyCreate, KeyCreated, KeyRotate, KeyView
from app.api_keys.service import Asking
from app.audit.trail import Trail
from app.auth import Principal, require_keys_write, require_operator
from app.bodies import Deleted
from app.context import Context
from app.db import tenant_scope
from app.etags import IfMatch
from app.idempotency.once import Once
from app.pages import Page, Paging
from app.session import RequestSession
from app.tenants.service import find_tenant


def operator_asks(request: Request, _: Annotated[None, Depends(require_operator)]) -> None:
    """Policy of the admin router."""
    request.state.grantor = None


def key_asks(
    request: Request, principal: Annotated[Principal, Depends(require_keys_write)]
) -> None:
    """Policy of the tenants' router."""
    request.state.grantor = principal


async def get_asking(
    request: Request, session: RequestSession, trail: Trail, context: Context
) -> Asking:
    """Who asks, and the session in the scope of the tenant that it is about."""
    grantor: Principal | None = request.state.grantor  # AttributeError, hence 500, without policy
    if grantor is None:
        tenant_id = (await find_tenant(session, request.path_params["tenant"])).id
    else:
        tenant_id = grantor.tenant_id
        await tenant_scope(session, tenant_id)
    return Asking(session, tenant_id, grantor, trail, context.now())


# NOTE: "function" because RequestSession is: it may not outlive what it is made from.
Asked = Annotated[Asking, Depends(get_asking, scope="function")]

router = APIRouter(prefix="/keys")


@router.post("", status_code=201)
async def create_key(body: KeyCreate, asking: Asked, context: Context, once: Once) -> KeyCreated:
    pepper = context.settings.key_peppers[0]
    created = await service.create_key(asking, body, pepper=pepper)
    return await once.keep(KeyCreated.with_secret(*created))


@router.get("")
async def list_keys(asking: Asked, paging: Paging) -> Page[KeyView]:
    keys = ApiKeyRepository(asking.session, asking.tenant_id)
    return paging.page(await keys.list_page(paging), KeyView.of)


@router.get("/{key}")
async def get_key(key: str, asking: Asked) -> KeyView:
    return KeyView.of(await service.find_key(asking, key))


@router.post("/{key}/rotate", status_code=201)
async def rotate_key(
    key: str,
    asking: Asked,
    context: Context,
    once: Once,
    body: KeyRotate | None = None,
    if_match: IfMatch = None,
) -> KeyCreated:
    pepper = context.settings.key_peppers[0]
    overlap_s = (body or KeyRotate()).overlap_s
    rotated = await service.rotate_key(
        asking, key, overlap_s=overlap_s, pepper=pepper, if_match=if_match
    )
    return await once.keep(KeyCreated.with_secret(*rotated))


@router.post("/{key}/disable")
async def disable_key(key: str, asking: Asked, if_match: IfMatch = None) -> KeyView:
    return KeyView.of(await service.disable_key(asking, key, if_match=if_match))


@router.delete("/{key}")
async def delete_key(key: str, asking: Asked, if_match: IfMatch = None) -> Deleted:
    await service.delete_key(asking, key, if_match=if_match)
    return Deleted(id=key, object="api_key")


admin_router = APIRouter(prefix="/tenants/{tenant}", dependencies=[Depends(operator_asks)])
tenant_router = APIRouter(dependencies=[Depends(key_asks)])
for _router in (admin_router, tenant_router):
    _router.include_router(router)
