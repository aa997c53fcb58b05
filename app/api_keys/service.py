"""What may be done with API keys.

Knows nothing of HTTP. Invariants: the secret exists in the answer to its creation and nowhere else;
a key makes, rotates and disables only keys that it could have made (`app.api_keys.grants`); every
change is in the tenant's audit log. The session is in the tenant's scope. What changes a key raises
as `check_etag` too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.api_keys.grants import Grant, check_grant
from app.api_keys.repository import ApiKeyRepository
from app.api_keys.schemas import KeyCreate, KeyView
from app.api_keys.secret import new_secret
from app.api_version import NEWEST
from app.audit.trail import AuditTrail
from app.auth import Principal, check_works, hash_key
from app.errors import BadRequestError, ConflictError, NotFoundError
from app.etags import check_etag
from app.ids import new_id
from app.session import principals_changed
from app.tables import ApiKey

_KEY_ID = re.compile(r"key_[0-9a-z]{26}")


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks, in whose name, and when. `grantor` is None for an operator."""

    session: AsyncSession
    tenant_id: str
    grantor: Principal | None
    trail: AuditTrail
    now: datetime


@dataclass(frozen=True, slots=True)
class _About:
    """What has no bearing on what a key may do. `api_version`: of the programs that have it."""

    name: str
    labels: dict[str, Any]
    api_version: str = NEWEST


async def create_key(asking: Asking, body: KeyCreate, *, pepper: str) -> tuple[ApiKey, str]:
    """The new key and its secret.

    Raises BadRequestError for a date that has passed, PermissionDeniedError for too much,
    UnauthorizedError where the key that asks was deleted, disabled or ended meanwhile.
    """
    expires_at = None if body.expires_at is None else datetime.fromtimestamp(body.expires_at, UTC)
    if expires_at is not None and expires_at <= asking.now:
        raise BadRequestError("'expires_at' lies in the past.", param="expires_at")
    grant = Grant(sorted(set(body.scopes)), _sorted(body.allowed_models), expires_at)
    maker, grantor = None, asking.grantor
    if grantor is not None:
        # Locked: whoever changes its limits from now on changes those of the new key as well.
        keys = ApiKeyRepository(asking.session, asking.tenant_id)
        maker = check_works(await keys.lock(grantor.key_id), asking.now)
        grantor = replace(grantor, expires_at=maker.expires_at)  # sooner, once it is rotated
    check_grant(grant, grantor)
    about = _About(body.name, body.metadata)
    key, secret = await _add(asking, about, grant, pepper, limited_as=maker)
    await _record(asking, "key.created", None, key)
    return key, secret


async def find_key(asking: Asking, key_id: str) -> ApiKey:
    """Raises NotFoundError."""
    key = None
    if _KEY_ID.fullmatch(key_id):
        key = await ApiKeyRepository(asking.session, asking.tenant_id).get(key_id)
    if key is None:
        raise NotFoundError("No such key.", param="key")
    return key


async def rotate_key(
    asking: Asking, key_id: str, *, overlap_s: int, pepper: str, if_match: str | None = None
) -> tuple[ApiKey, str]:
    """A new key that is allowed what the old one was, and its secret.

    The old one works for `overlap_s` more. Raises ConflictError (`key_not_active`) for a key that
    is disabled, expired or replaced already, PermissionDeniedError for one that may do too much.
    """
    old = await _lock_key(asking, key_id, if_match)
    is_over = old.expires_at is not None and old.expires_at <= asking.now
    if old.disabled_at is not None or old.replaced_by is not None or is_over:
        raise ConflictError(
            "Only a key that works, and that was not replaced before, can be rotated.",
            code="key_not_active",
            param="key",
        )
    before = KeyView.of(old)
    grant = Grant(old.scopes, old.allowed_models, old.expires_at)
    check_grant(grant, asking.grantor)
    about = _About(old.name, old.labels, old.api_version)
    new, secret = await _add(asking, about, grant, pepper, limited_as=old)
    ends_at = asking.now + timedelta(seconds=overlap_s)
    old.replaced_by = new.id
    old.expires_at = ends_at if old.expires_at is None else min(old.expires_at, ends_at)
    await asking.session.flush()
    await _record(asking, "key.rotated", before, old)
    await _record(asking, "key.created", None, new)
    return new, secret


async def disable_key(asking: Asking, key_id: str, *, if_match: str | None = None) -> ApiKey:
    """From now on the key is refused; a second call changes nothing."""
    key = await _lock_key(asking, key_id, if_match)
    check_grant(Grant(key.scopes, key.allowed_models, key.expires_at), asking.grantor)
    if key.disabled_at is None:
        before = KeyView.of(key)
        key.disabled_at = asking.now
        await asking.session.flush()
        await _record(asking, "key.disabled", before, key)
    return key


async def delete_key(asking: Asking, key_id: str, *, if_match: str | None = None) -> None:
    key = await _lock_key(asking, key_id, if_match)
    check_grant(Grant(key.scopes, key.allowed_models, key.expires_at), asking.grantor)
    await ApiKeyRepository(asking.session, asking.tenant_id).remove(key.id)
    principals_changed(asking.session)
    await asking.trail.record(
        asking.session, asking.tenant_id, "key.deleted", key.id, before=KeyView.of(key)
    )


async def _add(
    asking: Asking, about: _About, grant: Grant, pepper: str, *, limited_as: ApiKey | None
) -> tuple[ApiKey, str]:
    """The new key and its secret.

    `limited_as` is a key that it shares limits and counters with: neither a new key nor a rotated
    one is a fresh start.
    """
    secret = new_secret()
    key = ApiKey(
        id=new_id("key"),
        tenant_id=asking.tenant_id,
        name=about.name,
        labels=about.labels,
        key_hash=hash_key(pepper, secret),
        last4=secret[-4:],
        scopes=list(grant.scopes),
        allowed_models=None if grant.allowed_models is None else list(grant.allowed_models),
        created_at=asking.now,
        created_by=asking.trail.actor,
        expires_at=grant.expires_at,
        limits={} if limited_as is None else limited_as.limits,
        api_version=about.api_version,
        counted_as=None if limited_as is None else limited_as.counted_as or limited_as.id,
    )
    await ApiKeyRepository(asking.session, asking.tenant_id).add(key)
    return key, secret


async def _lock_key(asking: Asking, key_id: str, if_match: str | None) -> ApiKey:
    """The key, so that changes to it come one after another. Raises NotFoundError."""
    found = await find_key(asking, key_id)
    key = await ApiKeyRepository(asking.session, asking.tenant_id).lock(found.id)
    if key is None:  # deleted while we waited for the lock
        raise NotFoundError("No such key.", param="key")
    check_etag(KeyView.of(key).etag, if_match)
    return key


async def _record(asking: Asking, action: str, before: KeyView | None, key: ApiKey) -> None:
    if before is not None:  # a new key is nothing that anybody could still go by
        principals_changed(asking.session)
    await asking.trail.record(
        asking.session, asking.tenant_id, action, key.id, before=before, after=KeyView.of(key)
    )


def _sorted(names: list[str] | None) -> list[str] | None:
    return None if names is None else sorted(set(names))
