"""What Prometheus reads from an API process.

Knows nothing of HTTP. Invariant: every label has a bounded set of values (route templates, never
paths; no tenant, no model, no request id).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.transport.demand import Demand

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """One process's counters, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tenfold_http_requests_total",
            "Answered HTTP requests.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "tenfold_http_request_seconds",
            "Time from the request's arrival to the last byte of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )

        self._queued_requests = self._gauge("tenfold_queued_requests", "Requests that wait.")
        self._queued_tokens = self._gauge(
            "tenfold_queued_tokens",
            "Tokens that wait: prompts, and the longest answers.",
        )
        self._oldest_wait = self._gauge(
            "tenfold_queue_oldest_wait_seconds", "How long the first of them has waited."
        )
        self.observe_demand(None)

    def observe_demand(self, demand: Demand | None) -> None:
        """What waits, everywhere; None where that is not known."""
        unknown = float("nan")
        self._queued_requests.set(demand.num_queued if demand else unknown)
        self._queued_tokens.set(demand.queued_tokens if demand else unknown)
        self._oldest_wait.set(demand.oldest_wait_s if demand else unknown)

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(name, what, registry=self.registry)

    def render(self) -> bytes:
        return generate_latest(self.registry)
