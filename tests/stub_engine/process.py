"""A stub engine as a process: on a real queue, in real time, at home in milliseconds.

`python -m tests.stub_engine --redis-url redis://... --step-ms 5`, from the repository's root. It is
`engine/server.py` with a hash for a model and adapters that are there after `--load-ms`; the rest
is the engine's own. Kill it as you like.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import structlog

from app.launcher.ports import LOOPBACK
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loop import EngineLoop
from engine.meters import EngineMeters, LoopObserver, Observers
from engine.signals import call_on_signals
from engine.transport.server import EngineTransport
from lora.base_spec import BaseSpec
from tests.stub_engine.base import stub_base
from tests.stub_engine.clock import RealClock
from tests.stub_engine.loader import DelayedLoader
from tests.stub_engine.runner import HashRunner, StepCosts

log = structlog.get_logger("stub_engine")

OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def build(options: Namespace) -> EngineLoop:
    """The engine that `options` describe, not yet running."""
    base = _base(options)
    config = EngineConfig(
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        debug_poison_pages=True,
        drain_s=options.drain_s,
    )
    config = config.with_pool_bytes(options.num_pages * config.page_bytes(base))
    clock = RealClock()
    costs = StepCosts(options.step_ms / 1e3, options.token_ms / 1e3)
    runner = HashRunner(config, base, clock, costs, max_in_flight=options.max_in_flight)
    loader = DelayedLoader(
        runner.memory,
        clock,
        delay_s=lambda _: options.load_ms / 1e3,
        on_completed=lambda: loop.wake(),
    )
    core = EngineCore(config, base, runner, loader, options.engine_id, clock=clock)
    secret = os.environ["TENFOLD_QUEUE_SECRET"]
    transport = EngineTransport(options.redis_url, options.engine_id, secret=secret)
    meters = EngineMeters()
    observers = Observers(meters, *_tracers(options, base))
    loop = EngineLoop(core, transport, config, observers=observers)
    if options.health_port is not None:
        _show(core, loop, config, meters, base.model_id, options.health_port)
    return loop


# What the next two import would be a third of the time to boot, for the many that need neither.


def _tracers(options: Namespace, base: BaseSpec) -> list[LoopObserver]:
    """One, where traces are wanted."""
    endpoint = os.environ.get(OTLP_ENDPOINT)
    if endpoint is None:
        return []
    from engine.request_tracer import RequestTracer
    from engine.tracing import open_tracing

    tracer = open_tracing("engine", endpoint).tracer
    return [RequestTracer(tracer, options.engine_id, base.model_id)]


def _show(
    core: EngineCore,
    loop: EngineLoop,
    config: EngineConfig,
    meters: EngineMeters,
    model: str,
    port: int,
) -> None:
    """Probes and metrics, as long as the process lives."""
    from engine.health import EngineHealth, HealthServer
    from engine.metrics import EngineMetrics

    health = EngineHealth()
    metrics = EngineMetrics(health, meters)
    HealthServer(LOOPBACK, port, health, metrics.pages)
    metrics.watch(core, loop, config, model)
    health.watch(loop)


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(prog="python -m tests.stub_engine", description="No model, no torch.")
    parser.add_argument("--redis-url", required=True, help="the queue")
    parser.add_argument("--engine-id", default=f"stub-{os.getpid()}")
    parser.add_argument(
        "--adapter-store", choices=["none"], default="none", help="adapters have no bytes"
    )
    parser.add_argument("--model", type=Path, help="a base's folder: its config and tokenizer")
    parser.add_argument("--step-ms", type=float, default=0.0, help="of every step")
    parser.add_argument("--token-ms", type=float, default=0.0, help="of every token in a step")
    parser.add_argument("--load-ms", type=float, default=0.0, help="until an adapter is there")
    parser.add_argument("--max-in-flight", type=int, choices=[1, 2], default=1)
    parser.add_argument("--num-pages", type=int, default=4096)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-num-batched-tokens", type=int, default=128)
    parser.add_argument("--drain-s", type=float, default=8.0, help="for what runs, at a signal")
    parser.add_argument("--health-port", type=int, help="probes and metrics; default: nowhere")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    loop = build(options)
    call_on_signals(lambda: loop.stop() if loop.is_draining else loop.drain())
    log.info("engine_ready", engine_id=options.engine_id, cpu_ms=round(time.process_time() * 1e3))
    loop.run()
    log.info("engine_stopped", engine_id=options.engine_id)


def _base(options: Namespace) -> BaseSpec:
    return BaseSpec.from_folder(options.model) if options.model is not None else stub_base()
