"""What Prometheus reads from an API process.

Knows nothing of HTTP. Invariant: every label has a bounded set of values: route templates and
never paths, codes of our own errors, dependencies by name; tenants as `app.metrics.answers` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram

from app.metrics.answers import AnswerMetrics
from engine.exposition import LATENCY_S, new_registry, render
from engine.transport.demand import Demand

TOP_TENANTS = 20
UNKNOWN = float("nan")


@dataclass(frozen=True, slots=True)
class ApiState:
    """How an API process stands when it is asked; None where that is not known.

    `demand` and `num_engines` are of the whole installation, the others of this process.
    """

    demand: Demand | None
    num_engines: int | None
    usage_backlog: int
    num_in_flight: int
    is_draining: bool
    dependencies: Mapping[str, bool]
    """By name, whether it answers."""


class ApiMetrics:
    """One process's metrics, in a registry of their own."""

    def __init__(self, top_tenants: int = TOP_TENANTS) -> None:
        """top_tenants: how many have series of their own."""
        self.registry = new_registry("api")
        self.answers = AnswerMetrics(self.registry, top_tenants)
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
            buckets=LATENCY_S,
            registry=self.registry,
        )
        self._errors = Counter(
            "tenfold_http_errors_total",
            "Answers that are errors, by their code.",
            ("code",),
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
        self._leased = self._gauge("tenfold_leased_requests", "Requests that engines have.")
        self._engines = self._gauge("tenfold_engines", "Engines with a fresh heartbeat.")
        self._backlog = self._gauge(
            "tenfold_usage_backlog_records", "Records of usage that wait for a worker."
        )
        self._in_flight = self._gauge(
            "tenfold_requests_in_flight", "Sequences that this process waits for."
        )
        self._draining = self._gauge("tenfold_draining", "1 while this process drains.")
        self._dependency_up = Gauge(
            "tenfold_dependency_up",
            "1 where Postgres (registry) or Redis answers this process in time.",
            ("dependency",),
            registry=self.registry,
        )
        self.observe_demand(None)

    def observe_demand(self, demand: Demand | None) -> None:
        """What waits, everywhere; None where that is not known."""
        self._queued_requests.set(demand.num_queued if demand else UNKNOWN)
        self._queued_tokens.set(demand.queued_tokens if demand else UNKNOWN)
        self._oldest_wait.set(demand.oldest_wait_s if demand else UNKNOWN)
        self._leased.set(demand.num_running if demand else UNKNOWN)

    def observe(self, state: ApiState) -> None:
        """How the process stands; before `render`."""
        self.observe_demand(state.demand)
        self._engines.set(UNKNOWN if state.num_engines is None else state.num_engines)
        self._backlog.set(state.usage_backlog)
        self._in_flight.set(state.num_in_flight)
        self._draining.set(state.is_draining)
        for name, is_up in state.dependencies.items():
            self._dependency_up.labels(name).set(is_up)

    def observe_request(
        self, route: str, method: str, status: int, seconds: float, code: str | None = None
    ) -> None:
        """code: of the error that was answered."""
        self._requests.labels(route, method, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)
        if code is not None:
            self._errors.labels(code).inc()

    def render(self) -> bytes:
        return render(self.registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(name, what, registry=self.registry)
