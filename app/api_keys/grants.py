"""What one key may hand on to another: never more than it has itself.

Knows nothing of HTTP or SQL. Invariant: a grant is within its grantor in every dimension that a key
has (scopes, models, end), so that no chain of keys leads to more than its first one had. An
operator, who is no key, grants what it likes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from app.auth import Principal
from app.errors import PermissionDeniedError


@dataclass(frozen=True, slots=True)
class Grant:
    """What a key is, or is to be, allowed. None: no bound."""

    scopes: Collection[str]
    allowed_models: Collection[str] | None
    expires_at: datetime | None


def check_grant(grant: Grant, grantor: Principal | None) -> None:
    """Raises PermissionDeniedError (`grant_exceeds_key`). A `grantor` of None is the operator."""
    if grantor is None:
        return
    missing = sorted(set(grant.scopes) - grantor.scopes)
    if missing:
        _refuse(f"your key lacks the scope '{missing[0]}' itself")
    bound = grantor.allowed_models
    if bound is not None and (grant.allowed_models is None or set(grant.allowed_models) - bound):
        _refuse("your key may call fewer models itself")
    end = grantor.expires_at
    if end is not None and (grant.expires_at is None or grant.expires_at > end):
        _refuse("your key expires earlier itself")


def _refuse(why: str) -> None:
    raise PermissionDeniedError(
        f"A key cannot grant more than it has: {why}.", code="grant_exceeds_key"
    )
