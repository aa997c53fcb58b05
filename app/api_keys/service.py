"""What may be done with API keys.

Knows nothing of HTTP. Invariant: the secret exists in the answer to its creation and nowhere else.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from app.api_keys.repository import ApiKeyRepository
from app.api_keys.schemas import KeyCreate
from app.auth import hash_key
from app.errors import BadRequestError, NotFoundError
from app.ids import new_id
from app.tables import ApiKey

SECRET_PREFIX = "tf_"
_SECRET_BYTES = 32
_KEY_ID = re.compile(r"key_[0-9a-z]{26}")


async def create_key(
    session: AsyncSession, tenant_id: str, body: KeyCreate, *, pepper: str, now: datetime
) -> tuple[ApiKey, str]:
    """The new key and its secret. Raises BadRequestError for a date that has passed."""
    expires_at = None if body.expires_at is None else datetime.fromtimestamp(body.expires_at, UTC)
    if expires_at is not None and expires_at <= now:
        raise BadRequestError("'expires_at' lies in the past.", param="expires_at")
    secret = SECRET_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    key = ApiKey(
        id=new_id("key"),
        tenant_id=tenant_id,
        name=body.name,
        key_hash=hash_key(pepper, secret),
        last4=secret[-4:],
        scopes=sorted(set(body.scopes)),
        created_at=now,
        expires_at=expires_at,
    )
    await ApiKeyRepository(session, tenant_id).add(key)
    return key, secret


async def find_key(session: AsyncSession, tenant_id: str, key_id: str) -> ApiKey:
    """Raises NotFoundError."""
    key = None
    if _KEY_ID.fullmatch(key_id):
        key = await ApiKeyRepository(session, tenant_id).get(key_id)
    if key is None:
        raise NotFoundError("No such key.", param="key")
    return key


async def disable_key(
    session: AsyncSession, tenant_id: str, key_id: str, *, now: datetime
) -> ApiKey:
    """From now on the key is refused; a second call changes nothing."""
    key = await find_key(session, tenant_id, key_id)
    key.disabled_at = key.disabled_at or now
    await session.flush()
    return key


async def delete_key(session: AsyncSession, tenant_id: str, key_id: str) -> None:
    key = await find_key(session, tenant_id, key_id)
    await ApiKeyRepository(session, tenant_id).remove(key.id)
