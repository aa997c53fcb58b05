"""Takes traces as an OpenTelemetry collector does (OTLP over HTTP), and keeps them.

Knows nothing of Tenfold. Invariants: what is not a valid export request is answered 400 and not
kept; no span holds a canary, or the test fails that is running.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.launcher.ports import LOOPBACK
from tests.fixtures.canaries import heard

PATH = "/v1/traces"


class Collector:
    """`spans`: as dicts, with `service`, `attributes` by name, ids in hex."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer((LOOPBACK, 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_address[1]}"

    @property
    def spans(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._spans)

    def of_trace(self, trace_id: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["trace_id"] == trace_id]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, body: bytes) -> None:
        heard("a span", body)
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            for resource in request.resource_spans:
                service = _attributes(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    self._spans += [_span(service, span) for span in scope.spans]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the name is http.server's
                body = self.rfile.read(int(self.headers["content-length"]))
                try:
                    if self.headers.get("content-encoding"):
                        raise DecodeError("compressed")
                    collector._take(body)
                    status = 200 if self.path == PATH else 404
                except DecodeError:
                    status = 400
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        return Handler


def _span(service: str, span: Any) -> dict[str, Any]:
    return {
        "service": service,
        "name": span.name,
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_span_id.hex(),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "attributes": _attributes(span.attributes),
        "status": span.status.code,
    }


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(MessageToDict(pair.value)) for pair in pairs}


def _value(value: dict[str, Any]) -> Any:
    """Protobuf's JSON has 64-bit integers as text."""
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value(each) for each in value["arrayValue"].get("values", [])]
    return next(iter(value.values()), None)
