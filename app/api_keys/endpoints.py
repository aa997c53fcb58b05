"""`/admin/v1/tenants/{tenant}/keys`: operators make, list, disable and delete a tenant's keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from app.api_keys import service
from app.api_keys.repository import ApiKeyRepository
from app.api_keys.schemas import KeyCreate, KeyCreated, KeyView
from app.auth import require_operator
from app.bodies import Deleted
from app.context import AppContext, get_context
from app.pages import Page, Paging
from app.session import RequestSession
from app.tenants.service import find_tenant

router = APIRouter(prefix="/tenants/{tenant}/keys", dependencies=[Depends(require_operator)])
Context = Annotated[AppContext, Depends(get_context)]


@router.post("", status_code=201)
async def create_key(
    tenant: str, body: KeyCreate, session: RequestSession, context: Context
) -> KeyCreated:
    owner = await find_tenant(session, tenant)
    key, secret = await service.create_key(
        session,
        owner.id,
        body,
        pepper=context.settings.key_pepper.get_secret_value(),
        now=context.now(),
    )
    return KeyCreated.with_secret(key, secret)


@router.get("")
async def list_keys(tenant: str, session: RequestSession, paging: Paging) -> Page[KeyView]:
    owner = await find_tenant(session, tenant)
    rows = await ApiKeyRepository(session, owner.id).list_page(paging.after, paging.num_rows)
    return paging.page(rows, KeyView.of)


@router.get("/{key}")
async def get_key(tenant: str, key: str, session: RequestSession) -> KeyView:
    owner = await find_tenant(session, tenant)
    return KeyView.of(await service.find_key(session, owner.id, key))


@router.post("/{key}/disable")
async def disable_key(tenant: str, key: str, session: RequestSession, context: Context) -> KeyView:
    owner = await find_tenant(session, tenant)
    return KeyView.of(await service.disable_key(session, owner.id, key, now=context.now()))


@router.delete("/{key}")
async def delete_key(tenant: str, key: str, session: RequestSession) -> Deleted:
    owner = await find_tenant(session, tenant)
    await service.delete_key(session, owner.id, key)
    return Deleted(id=key, object="api_key")
