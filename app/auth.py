"""Who is asking: from a key in the request to a `Principal`, or a refusal.

Knows nothing of what is asked for. Invariants: a `Principal` is made here, from a row that the
presented key's HMAC found (for work that a key has left behind: that its id finds), and nowhere
else; whatever fails on the way ends in 401 or 503, never in a default; the key itself is neither
stored nor logged.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal

from fastapi import Request

from app.api_keys.repository import FoundKey, find_key_by_hash, find_key_by_id, rehash_key
from app.api_keys.secret import is_well_formed
from app.api_version import NEWEST
from app.context import AppContext, Context
from app.errors import NotFoundError, PermissionDeniedError, UnauthorizedError
from app.plans.limits import Terms
from app.plans.terms import terms_of
from app.settings import Settings
from app.tables import ApiKey

Scope = Literal["inference", "adapters:write", "keys:write", "usage:read"]
MAX_KEY_CHARS = 256
MAX_ROTATIONS = 100  # that a key is followed through
OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified key: its tenant, what it may do, and the terms that both are held to.

    `allowed_models` (adapters' names, bases' ids) bounds the key and `allowed_bases` its tenant;
    None is no bound. `expires_at` is the key's own, `api_version` that of requests that name none.
    """

    tenant_id: str
    tenant_slug: str
    key_id: str
    scopes: frozenset[str]
    terms: Terms
    allowed_models: frozenset[str] | None
    allowed_bases: frozenset[str] | None
    expires_at: datetime | None
    api_version: str = NEWEST

    @property
    def weight(self) -> float:
        return self.terms.weight

    @property
    def allows_priority(self) -> bool:
        return self.terms.allows_priority

    def may_call(self, name: str) -> bool:
        """Whether the key's own list lets it call the adapter or base of this name."""
        return self.allowed_models is None or name in self.allowed_models

    def may_call_base(self, model_id: str) -> bool:
        """Whether tenant and key may call this base by its own id."""
        return self.may_call(model_id) and (
            self.allowed_bases is None or model_id in self.allowed_bases
        )


def hash_key(pepper: str, key: str) -> str:
    """HMAC-SHA256 of the whole key, in hex: what the registry knows a key by."""
    return hmac.new(pepper.encode(), key.encode(), hashlib.sha256).hexdigest()


def public() -> None:
    """The policy of a route that needs no key. Every route declares one of these six."""


async def require_inference(request: Request, context: Context) -> Principal:
    return await _require_scope(request, context, "inference")


async def require_adapters_write(request: Request, context: Context) -> Principal:
    return await _require_scope(request, context, "adapters:write")


async def require_keys_write(request: Request, context: Context) -> Principal:
    return await _require_scope(request, context, "keys:write")


async def require_usage_read(request: Request, context: Context) -> Principal:
    return await _require_scope(request, context, "usage:read")


def require_operator(request: Request, context: Context) -> None:
    expected = context.settings.admin_key
    presented = _presented_key(request)
    if expected is None or not hmac.compare_digest(
        presented.encode(), expected.get_secret_value().encode()
    ):
        raise _invalid_key()
    request.state.actor = OPERATOR


async def verify_key(context: AppContext, key: str) -> Principal:
    """The principal of `key`.

    Raises UnauthorizedError, PermissionDeniedError for a suspended tenant, or UnavailableError
    without registry.
    """
    if not is_well_formed(key):
        raise _invalid_key()
    hashes = [hash_key(pepper, key) for pepper in context.settings.key_peppers]
    found = await context.registry.look_up(("key", hashes[0]), partial(_find_key, context, hashes))
    if found is None or not any(hmac.compare_digest(found.key.key_hash, each) for each in hashes):
        raise _invalid_key()
    return _admitted(context, found)


async def verify_again(context: AppContext, tenant_id: str, key_id: str) -> Principal:
    """The principal of a key that was verified when it left work behind, as the key is now.

    Of one that was rotated and is over: of the key in its place. Raises as `verify_key`; a key that
    was deleted is as one that was disabled.
    """
    for _ in range(MAX_ROTATIONS):
        found = await context.registry.look_up(
            ("key", tenant_id, key_id), partial(_find_key_by_id, context, tenant_id, key_id)
        )
        if found is None:
            raise UnauthorizedError("This API key has been disabled.", code="key_disabled")
        key = found.key
        is_over = key.expires_at is not None and key.expires_at <= context.now()
        if key.disabled_at is not None or key.replaced_by is None or not is_over:
            break
        key_id = key.replaced_by
    assert found is not None, "each round has found a key"
    return _admitted(context, found)


def check_works(key: ApiKey | None, now: datetime) -> ApiKey:
    """The key, where there is one. Raises UnauthorizedError; also of one disabled or expired."""
    if key is None:
        raise _invalid_key()
    if key.disabled_at is not None:
        raise UnauthorizedError("This API key has been disabled.", code="key_disabled")
    if key.expires_at is not None and key.expires_at <= now:
        raise UnauthorizedError("This API key has expired.", code="key_expired")
    return key


def _admitted(context: AppContext, found: FoundKey) -> Principal:
    check_works(found.key, context.now())
    if found.tenant.suspended_at is not None:
        raise PermissionDeniedError(
            "Your organization is suspended. Please contact your provider.",
            code="tenant_suspended",
        )
    return _principal_of(found, context.settings)


def _principal_of(found: FoundKey, settings: Settings) -> Principal:
    tenant = found.tenant
    return Principal(
        tenant_id=tenant.id,
        tenant_slug=tenant.slug,
        key_id=found.key.id,
        scopes=frozenset(found.key.scopes),
        terms=terms_of(found.key, tenant, found.plan, settings),
        allowed_models=_frozen(found.key.allowed_models),
        allowed_bases=_frozen(tenant.allowed_bases),
        expires_at=found.key.expires_at,
        api_version=found.key.api_version,
    )


def _frozen(names: list[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


async def _find_key(context: AppContext, hashes: list[str]) -> FoundKey | None:
    """By any of the hashes; from then on the registry has it by the first, the current pepper's."""
    # The first once more: another process may just have put it in the place of an older one.
    again = hashes[:1] if len(hashes) > 1 else []
    async with context.database.session() as session:
        for key_hash in (*hashes, *again):
            found = await find_key_by_hash(session, key_hash)
            if found is not None:
                if key_hash != hashes[0]:
                    await rehash_key(session, found.key, hashes[0])
                return found
    return None


async def _find_key_by_id(context: AppContext, tenant_id: str, key_id: str) -> FoundKey | None:
    async with context.database.session() as session:
        return await find_key_by_id(session, tenant_id, key_id)


async def _require_scope(request: Request, context: AppContext, scope: Scope) -> Principal:
    principal = await verify_key(context, _presented_key(request))
    if getattr(request.state, "api_version", None) is None:  # the request names none
        request.state.api_version = principal.api_version
    # Under /t/{tenant}/v1 another tenant's path is answered as if that tenant did not exist.
    tenant = request.path_params.get("tenant")
    if tenant is not None and tenant not in (principal.tenant_id, principal.tenant_slug):
        raise NotFoundError()
    if scope not in principal.scopes:
        raise PermissionDeniedError(f"This API key lacks the scope '{scope}'.")
    request.state.actor = principal.key_id
    request.state.actor_tenant_id = principal.tenant_id
    return principal


def _presented_key(request: Request) -> str:
    """The key in `Authorization: Bearer`, else in `x-api-key`."""
    authorization = request.headers.get("authorization")
    if authorization is not None:
        kind, _, key = authorization.partition(" ")
        key = key.strip() if kind.lower() == "bearer" else ""
    else:
        key = request.headers.get("x-api-key", "").strip()
    if not key:
        raise UnauthorizedError(
            "You did not provide an API key. Send it as 'Authorization: Bearer KEY'."
        )
    if len(key) > MAX_KEY_CHARS or not key.isascii():
        raise _invalid_key()
    return key


def _invalid_key() -> UnauthorizedError:
    return UnauthorizedError("Incorrect API key provided.")
