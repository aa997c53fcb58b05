"""The two applications of an API process: the tenants' port and the admin port.

Knows nothing of what the routes do. Invariant: nothing under `/admin` is reachable on the tenants'
port, and every route declares one of the policies of `app.auth`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Response
from starlette.types import Scope

import app.completions.endpoints
import app.models.endpoints
from app import health, internal
from app.adapters import endpoints as adapters
from app.admission import endpoints as admission
from app.api_keys import endpoints as api_keys
from app.audit import endpoints as audit
from app.auth import public
from app.batches import endpoints as batches
from app.body_timeout import BodyTimeout
from app.completions.turnstile import count_turned_away
from app.context import AppContext
from app.draining import Drain
from app.error_handlers import install_error_handlers
from app.errors import ApiError, UnavailableError
from app.events import endpoints as events
from app.files import endpoints as files
from app.front_door import FrontDoor
from app.imports import endpoints as imports
from app.metrics.api import ApiState
from app.middleware import BodyLimit, RequestEdge
from app.openapi import endpoints as openapi
from app.plans import endpoints as plans
from app.prices import endpoints as prices
from app.promptly import promptly
from app.requests import endpoints as requests
from app.route_finder import RouteFinder
from app.tenants import endpoints as tenants
from app.uploads import endpoints as uploads
from app.usage import endpoints as usage
from engine.exposition import CONTENT_TYPE
from engine.transport.errors import QueueUnavailableError

TENANT_PREFIXES = ("/v1", "/t/{tenant}/v1")
ADMIN_PREFIX = "/admin/v1"
METRICS_TIMEOUT_S = 1.0

T = TypeVar("T")


def create_app(context: AppContext) -> FastAPI:
    """The tenants' port: inference, models, and their own adapters and keys."""
    api = _new_app(context, context.drain)
    api.include_router(openapi.tenant_router())
    for prefix in TENANT_PREFIXES:
        api.include_router(app.completions.endpoints.router, prefix=prefix)
        api.include_router(app.models.endpoints.router, prefix=prefix)
        api.include_router(adapters.tenant_router, prefix=prefix)
        api.include_router(uploads.tenant_router, prefix=prefix)
        api.include_router(imports.tenant_router, prefix=prefix)
        api.include_router(api_keys.tenant_router, prefix=prefix)
        api.include_router(usage.tenant_router, prefix=prefix)
        api.include_router(files.router, prefix=prefix)
        api.include_router(batches.router, prefix=prefix)
    return api


def create_admin_app(context: AppContext) -> FastAPI:
    """The admin port: `/admin/v1`, `/internal` and `/metrics`. It is never exposed to tenants."""
    # Nobody waits for an operator's requests: who drains asks by one of them.
    admin = _new_app(context, Drain(delay_s=0, limit_s=0))
    for router in (
        tenants.router,
        api_keys.admin_router,
        adapters.admin_router,
        uploads.admin_router,
        imports.admin_router,
        requests.router,
        plans.plans,
        plans.limits,
        admission.router,
        audit.router,
        prices.router,
        usage.admin_router,
        events.router,
    ):
        admin.include_router(router, prefix=ADMIN_PREFIX)
    admin.include_router(openapi.admin_router(), prefix=ADMIN_PREFIX)
    admin.include_router(internal.router)
    admin.include_router(_metrics_router(context))
    return admin


def _new_app(context: AppContext, drain: Drain) -> FastAPI:
    api = FastAPI(title="Tenfold", openapi_url=None, docs_url=None, redoc_url=None)
    api.state.ctx = context
    install_error_handlers(api)
    api.include_router(health.router)
    api.add_middleware(BodyTimeout, timeout_s=context.settings.body_timeout_s)
    api.add_middleware(BodyLimit, max_bytes=context.settings.max_body_bytes)
    api.add_middleware(
        FrontDoor,
        max_lag_s=context.settings.max_loop_lag_s,
        on_refused=partial(_turned_away, context, RouteFinder(api)),
    )
    api.add_middleware(RequestEdge, metrics=context.metrics, drain=drain, tracer=context.tracer)
    return api


def _turned_away(context: AppContext, routes: RouteFinder, scope: Scope, error: ApiError) -> None:
    """What came no further than the front door counts as what it asked for."""
    scope["route"] = routes.find(scope)
    count_turned_away(context.turnstile, context.answers, scope, error)


def _metrics_router(context: AppContext) -> APIRouter:
    router = APIRouter(dependencies=[Depends(public)])

    @router.get("/metrics")
    async def metrics() -> Response:
        context.metrics.observe(await _state(context))
        return Response(context.metrics.render(), media_type=CONTENT_TYPE)

    return router


async def _state(context: AppContext) -> ApiState:
    queue, registry, redis = context.queue, context.registry.availability, context.redis
    demand, num_engines = await asyncio.gather(_known(queue.demand()), _known(queue.num_engines()))
    return ApiState(
        demand=demand,
        num_engines=num_engines,
        usage_backlog=queue.usage_backlog,
        num_in_flight=queue.num_in_flight,
        is_draining=context.drain.is_draining,
        dependencies={
            "registry": not registry.is_away,
            "redis": queue.is_connected and not redis.is_away,
        },
    )


async def _known(asking: Coroutine[Any, Any, T]) -> T | None:
    """What the queue says, or None where it does not in time."""
    try:
        return await promptly(asking, METRICS_TIMEOUT_S)
    except (QueueUnavailableError, UnavailableError):
        return None
