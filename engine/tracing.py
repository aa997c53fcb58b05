"""OpenTelemetry traces: where spans go, and how a trace gets from one process to the next.

Torch-free: the API uses it too. The SDK is an extra (`pip install 'tenfold[tracing]'`) and is only
loaded where an endpoint is set; without one every span is OpenTelemetry's own nothing. Spans are
sent by a thread of the SDK's, in batches, and dropped where the collector does not take them.
Invariant: a span holds no prompt, no token and no key.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, Span, SpanContext, TraceFlags, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_PATH = "/v1/traces"
_TRACEPARENT = "traceparent"
_propagator = TraceContextTextMapPropagator()


class TracingMissingError(Exception):
    """Traces are asked for, and what sends them is not installed."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """`tracer` of one process; `close` sends what is left, and blocks for it."""

    tracer: Tracer
    close: Callable[[], None]


def open_tracing(service: str, endpoint: str | None) -> Tracing:
    """Traces of `service` go to the OTLP/HTTP collector at `endpoint`; None: to nobody.

    What else OpenTelemetry's SDK reads from the environment (sampler, headers, resource) holds.
    Raises TracingMissingError.
    """
    if not endpoint:
        return Tracing(NoOpTracer(), lambda: None)
    try:  # here, because it is an extra that most do without
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingMissingError(
            f"{ENDPOINT} is set, and the SDK is not installed: pip install 'tenfold[tracing]'"
        ) from error
    resource = Resource.create(
        {
            "service.name": f"tenfold-{service}",
            "service.namespace": "tenfold",
            "service.instance.id": socket.gethostname(),
        }
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint.rstrip("/") + TRACES_PATH)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider.get_tracer("tenfold"), provider.shutdown)


def context_of(traceparent: str | None) -> Context | None:
    """The context that a W3C traceparent names; None where there is none."""
    if not traceparent:
        return None
    return _propagator.extract({_TRACEPARENT: traceparent})


def traceparent_of(span: Span) -> str | None:
    """What carries `span` to another process; None where it is not recorded."""
    context = span.get_span_context()
    if not (span.is_recording() and context.is_valid and _is_sampled(context)):
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def current_span() -> Span:
    """The span that the code at hand runs in, as OpenTelemetry knows it."""
    return trace.get_current_span()


def _is_sampled(context: SpanContext) -> bool:
    return bool(context.trace_flags & TraceFlags.SAMPLED)
