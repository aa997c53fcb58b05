"""The outermost layers of an application, as plain ASGI: they pass streams through untouched.

`RequestEdge` gives every request its id, logs, counts and traces it, and answers what nobody
caught; `BodyLimit` stops a body that is too large while it arrives. Neither knows a route or a
tenant.
Invariants: every response carries `x-request-id` and `request-id`, made here and never taken from
the client; one of the API carries the `api-version` that it is of.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from opentelemetry.trace import NoOpTracer, Span, SpanKind, Status, StatusCode, Tracer
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api_version import HEADER, NEWEST, asked_version, is_versioned
from app.draining import Drain
from app.error_handlers import error_response, internal_error
from app.errors import BadRequestError
from app.ids import new_id
from app.metrics.api import ApiMetrics
from engine.tracing import context_of

log = structlog.get_logger()

CLIENT_CLOSED_REQUEST = 499  # nginx's number; for logs and metrics only
UNMATCHED_ROUTE = "unmatched"
UNTRACED = frozenset({"/livez", "/readyz", "/metrics"})
# What takes files has larger limits of its own.
UPLOAD_ROUTE_SUFFIXES = ("/versions", "/validate", "/files")
PART_ROUTE = re.compile(r".*/adapters/[^/]+/uploads/[^/]+/files/[^/]+/parts/[^/]+")


class RequestEdge:
    def __init__(
        self,
        app: ASGIApp,
        metrics: ApiMetrics,
        drain: Drain,
        tracer: Tracer | None = None,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.drain = drain
        self.tracer = tracer or NoOpTracer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = new_id("req")
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        if is_versioned(scope):
            state["api_version"] = None
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["request-id"] = request_id
                if "api_version" in state:
                    headers[HEADER] = state["api_version"] or NEWEST
                if self.drain.is_draining:  # the client's next request is another process's
                    headers["connection"] = "close"
            await send(message)

        started_at = time.perf_counter()
        self.drain.enter()
        with self._traced(scope, request_id) as span, _logged(request_id, span):
            try:
                await self._enter(scope, receive, send_with_id)
            except ClientDisconnect:  # while it was sending: nobody is left to be answered
                status = status or CLIENT_CLOSED_REQUEST
            except Exception:
                log.exception("request_crashed")
                if status:  # the response has begun: all that is left is to cut the connection
                    raise
                await error_response(internal_error())(scope, receive, send_with_id)
            finally:
                self.drain.leave()
                self._record(scope, status, time.perf_counter() - started_at, span)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the application, unless it is asked for a version that there is not."""
        if "api_version" in scope["state"]:
            try:
                scope["state"]["api_version"] = asked_version(scope)
            except BadRequestError as error:
                await error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _record(self, scope: Scope, status: int, seconds: float, span: Span) -> None:
        route = getattr(scope.get("route"), "path", UNMATCHED_ROUTE)
        method = scope["method"] if route != UNMATCHED_ROUTE else "any"
        code, actor = (scope["state"].get(name) for name in ("error_code", "actor"))
        self.metrics.observe_request(route, method, status, seconds, code)
        known = {"code": code, "actor": actor}
        log.info(
            "http_request",
            route=route,
            method=method,
            status=status,
            ms=int(seconds * 1000),
            **{name: value for name, value in known.items() if value is not None},
        )
        if span.is_recording():
            span.update_name(f"{method} {route}")
            span.set_attributes({"http.route": route, "http.response.status_code": status})
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR, code))

    @contextmanager
    def _traced(self, scope: Scope, request_id: str) -> Iterator[Span]:
        """The request's span; whoever calls may say which trace it belongs to."""
        if scope["path"] in UNTRACED:
            yield NoOpTracer().start_span(scope["path"])
            return
        with self.tracer.start_as_current_span(
            scope["method"],
            context_of(Headers(scope=scope).get("traceparent")),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": scope["method"],
                "tenfold.request_id": request_id,
            },
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span


@contextmanager
def _logged(request_id: str, span: Span) -> Iterator[None]:
    """Until the block ends every event has the request's id, and its trace's if it has one."""
    fields: dict[str, str] = {"request_id": request_id}
    if span.is_recording():
        fields["trace_id"] = f"{span.get_span_context().trace_id:032x}"
    with structlog.contextvars.bound_contextvars(**fields):
        yield


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
    method, path = scope["method"], str(scope["path"])
    if method == "PUT":
        return PART_ROUTE.fullmatch(path) is not None
    return method == "POST" and path.endswith(UPLOAD_ROUTE_SUFFIXES)
