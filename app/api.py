"""The two applications of an API process: the tenants' port and the admin port.

Knows nothing of what the routes do. Invariant: nothing under `/admin` is reachable on the tenants'
port, and every route declares one of the policies of `app.auth`.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Response

import app.completions.endpoints
import app.models.endpoints
from app import health, internal
from app.adapters import endpoints as adapters
from app.admission import endpoints as admission
from app.api_keys import endpoints as api_keys
from app.audit import endpoints as audit
from app.auth import public
from app.context import AppContext
from app.draining import Drain
from app.error_handlers import install_error_handlers
from app.errors import UnavailableError
from app.front_door import FrontDoor
from app.metrics import CONTENT_TYPE
from app.middleware import BodyLimit, RequestEdge
from app.plans import endpoints as plans
from app.prices import endpoints as prices
from app.promptly import promptly
from app.requests import endpoints as requests
from app.tenants import endpoints as tenants
from app.usage import endpoints as usage
from engine.transport.demand import Demand
from engine.transport.errors import QueueUnavailableError

TENANT_PREFIXES = ("/v1", "/t/{tenant}/v1")
ADMIN_PREFIX = "/admin/v1"
METRICS_TIMEOUT_S = 1.0


def create_app(context: AppContext) -> FastAPI:
    """The tenants' port: inference, models, and their own adapters and keys."""
    api = _new_app(context, context.drain)
    for prefix in TENANT_PREFIXES:
        api.include_router(app.completions.endpoints.router, prefix=prefix)
        api.include_router(app.models.endpoints.router, prefix=prefix)
        api.include_router(adapters.tenant_router, prefix=prefix)
        api.include_router(api_keys.tenant_router, prefix=prefix)
        api.include_router(usage.tenant_router, prefix=prefix)
    return api


def create_admin_app(context: AppContext) -> FastAPI:
    """The admin port: `/admin/v1`, `/internal` and `/metrics`. It is never exposed to tenants."""
    # Nobody waits for an operator's requests: who drains asks by one of them.
    admin = _new_app(context, Drain(delay_s=0, limit_s=0))
    for router in (
        tenants.router,
        api_keys.admin_router,
        adapters.admin_router,
        requests.router,
        plans.plans,
        plans.limits,
        admission.router,
        audit.router,
        prices.router,
        usage.admin_router,
    ):
        admin.include_router(router, prefix=ADMIN_PREFIX)
    admin.include_router(internal.router)
    admin.include_router(_metrics_router(context))
    return admin


def _new_app(context: AppContext, drain: Drain) -> FastAPI:
    api = FastAPI(title="Tenfold", openapi_url=None, docs_url=None, redoc_url=None)
    api.state.ctx = context
    install_error_handlers(api)
    api.include_router(health.router)
    api.add_middleware(BodyLimit, max_bytes=context.settings.max_body_bytes)
    api.add_middleware(FrontDoor, max_lag_s=context.settings.max_loop_lag_s)
    api.add_middleware(RequestEdge, metrics=context.metrics, drain=drain)
    return api


def _metrics_router(context: AppContext) -> APIRouter:
    router = APIRouter(dependencies=[Depends(public)])

    @router.get("/metrics")
    async def metrics() -> Response:
        context.metrics.observe_demand(await _demand(context))
        return Response(context.metrics.render(), media_type=CONTENT_TYPE)

    return router


async def _demand(context: AppContext) -> Demand | None:
    try:
        return await promptly(context.queue.demand(), METRICS_TIMEOUT_S)
    except (QueueUnavailableError, UnavailableError):
        return None
