"""The outermost layers of an application, as plain ASGI: they pass streams through untouched.

`RequestEdge` gives every request its id, logs and counts it, and answers what nobody caught;
`BodyLimit` stops a body that is too large while it arrives. Neither knows a route or a tenant.
Invariant: every response carries `x-request-id` and `request-id`, made here and never taken from
the client.
"""

from __future__ import annotations

import time

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.draining import Drain
from app.error_handlers import error_response, internal_error
from app.ids import new_id
from app.metrics import Metrics

log = structlog.get_logger()

CLIENT_CLOSED_REQUEST = 499  # nginx's number; for logs and metrics only
UNMATCHED_ROUTE = "unmatched"
UPLOAD_ROUTE_SUFFIX = "/versions"  # adapter uploads have their own, larger limit


class RequestEdge:
    def __init__(self, app: ASGIApp, metrics: Metrics, drain: Drain) -> None:
        self.app = app
        self.metrics = metrics
        self.drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["request-id"] = request_id
                if self.drain.is_draining:  # the client's next request is another process's
                    headers["connection"] = "close"
            await send(message)

        started_at = time.perf_counter()
        self.drain.enter()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self.app(scope, receive, send_with_id)
            except ClientDisconnect:  # while it was sending: nobody is left to be answered
                status = status or CLIENT_CLOSED_REQUEST
            except Exception:
                log.exception("request_crashed")
                if status:  # the response has begun: all that is left is to cut the connection
                    raise
                await error_response(internal_error())(scope, receive, send_with_id)
            finally:
                self.drain.leave()
                self._record(scope, status, time.perf_counter() - started_at)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", UNMATCHED_ROUTE)
        method = scope["method"] if route != UNMATCHED_ROUTE else "any"
        self.metrics.observe_request(route, method, status, seconds)
        log.info("http_request", route=route, method=method, status=status, ms=int(seconds * 1000))


class BodyLimit:
    """Refuses a body over `max_bytes` with 413, by its declared length or while it is read."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_upload(scope):
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > self.max_bytes:
            await self.app(scope, _refuse, send)
            return
        num_bytes = 0

        async def limited_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self.max_bytes:
                raise HTTPException(413)
            return message

        await self.app(scope, limited_receive, send)


async def _refuse() -> Message:
    raise HTTPException(413)


def _is_upload(scope: Scope) -> bool:
    return scope["method"] == "POST" and str(scope["path"]).endswith(UPLOAD_ROUTE_SUFFIX)
