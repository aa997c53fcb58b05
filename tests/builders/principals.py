"""Principals without a registry, for tests of what is done with one. The product has one maker."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from app.auth import Principal
from app.plans.limits import Terms


def make_principal(
    *,
    scopes: frozenset[str] = frozenset({"inference"}),
    allowed_models: frozenset[str] | None = None,
    allowed_bases: frozenset[str] | None = None,
    expires_at: datetime | None = None,
    **others: Any,
) -> Principal:
    """A key of tenant `ten_a`; `others` are the fields that other parts gave a principal."""
    fields: dict[str, Any] = {
        "tenant_id": "ten_a",
        "tenant_slug": "a",
        "key_id": "key_a",
        "scopes": scopes,
        "terms": Terms(),
        "allowed_models": allowed_models,
        "allowed_bases": allowed_bases,
        "expires_at": expires_at,
    }
    return Principal(**fields | others)
