"""`API-Version`: the dated surface of the API that a request is answered with.

Knows nothing of routes or keys. There is one version, so nothing asks for it yet; a second one is a
second date here, and whatever differs asks `request.state.api_version`. Invariants: what a request
names is a version that is known, or refused by name; one that names none has its key's, which is
the newest of the day on which the key was made.
"""

from __future__ import annotations

from starlette.types import Scope

from app.errors import BadRequestError

NEWEST = "2026-11-30"
KNOWN = {each.encode(): each for each in (NEWEST,)}
HEADER = "api-version"
PREFIXES = ("/v1/", "/t/", "/admin/v1/")

_NAME = HEADER.encode()


def is_versioned(scope: Scope) -> bool:
    """Not so: health, metrics, and what processes say to each other."""
    return str(scope["path"]).startswith(PREFIXES)


def asked_version(scope: Scope) -> str | None:
    """What an HTTP request names. Raises BadRequestError (`api_version_unknown`)."""
    for name, value in scope["headers"]:
        if name == _NAME:
            version = KNOWN.get(value)
            if version is None:
                raise BadRequestError(
                    f"There is no such version of the API. Known: {', '.join(KNOWN.values())}.",
                    code="api_version_unknown",
                    param=HEADER,
                )
            return version
    return None
