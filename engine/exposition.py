"""How every process shows its metrics: a registry of its own, and Prometheus' text of it.

Knows nothing of what is measured. Torch-free: API and worker use it too. Invariant: every process
has `tenfold_build_info`, which says what it is, and the standard `process_*` metrics.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from engine.meters import STEP_S, WAIT_S

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_S = WAIT_S
"""Upper bounds of what a client waits for."""
TOKEN_S = STEP_S
"""Of what lies between two tokens, and of a step."""

Process = Literal["api", "engine", "worker"]


def new_registry(process: Process) -> CollectorRegistry:
    """An empty registry, but for what every process says of itself."""
    # When a series began is of no use to anybody, and would be a series for each.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # (it has no types)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    info = Gauge(
        "tenfold_build_info",
        "1; the labels say what this process is.",
        ("process", "version"),
        registry=registry,
    )
    info.labels(process, _version()).set(1)
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """Prometheus' text, as of now; of `CONTENT_TYPE`."""
    return generate_latest(registry)


def _version() -> str:
    try:
        return version("tenfold")
    except PackageNotFoundError:  # a checkout that was not installed
        return "unknown"
