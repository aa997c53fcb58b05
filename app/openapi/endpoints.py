"""`GET /openapi.json` on the tenants' port, and `GET /admin/v1/openapi.json` for operators.

Knows nothing of documents. Invariant: a document is made once, when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from app.auth import public, require_operator
from app.openapi.document import admin_document, tenant_document

Make = Callable[[FastAPI], dict[str, Any]]


def _router(path: str, policy: Callable[..., Any], make: Make) -> APIRouter:
    router = APIRouter(dependencies=[Depends(policy)])
    made = lru_cache(maxsize=1)(make)

    @router.get(path, include_in_schema=False)
    def openapi(request: Request) -> Response:
        return JSONResponse(made(request.app))

    return router


def tenant_router() -> APIRouter:
    return _router("/openapi.json", public, tenant_document)


def admin_router() -> APIRouter:
    return _router("/openapi.json", require_operator, admin_document)
