"""An engine process from its options: builds the parts, runs the loop until a signal.

The only place of the engine that reads the environment, apart from `engine/__main__.py`.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import torch
import typer

from engine.adapter_loader import AdapterLoader
from engine.collector import freeze_startup
from engine.config import (
    CPU_POOL_BYTES,
    GPU_MEMORY_UTILIZATION,
    HOST_BYTES,
    PREFIX_PROTECTED_SHARE,
    DeviceOption,
    Dtype,
    EngineConfig,
    Preemption,
    choose_device,
    default_dtype,
)
from engine.core import EngineCore
from engine.device import has_cuda
from engine.event_log import configure_logging
from engine.health import EngineHealth, HealthServer
from engine.loop import EngineLoop
from engine.memory_split import split_memory
from engine.messages import AdapterRef
from engine.meters import EngineMeters, Observers
from engine.metrics import EngineMetrics
from engine.request_tracer import RequestTracer
from engine.runners import open_runner
from engine.signals import call_on_signals
from engine.tracing import ENDPOINT, TracingMissingError, open_tracing
from engine.transport.certificates import Certificates
from engine.transport.server import EngineTransport
from lora.base_spec import BaseSpec
from lora.store_open import DEFAULT_CACHE, DEFAULT_CACHE_BYTES, open_store

log = structlog.get_logger("engine")

HUNG_EXIT_CODE = 70  # EX_SOFTWARE
QUEUE_SECRET = "TENFOLD_QUEUE_SECRET"


def serve(
    model: Annotated[Path, typer.Option(envvar="TENFOLD_MODEL", help="Folder of the base model.")],
    redis_url: Annotated[str, typer.Option(envvar="TENFOLD_REDIS_URL", help="The queue.")],
    adapter_store: Annotated[
        str,
        typer.Option(
            envvar=["TENFOLD_ADAPTER_STORE_URL", "TENFOLD_ADAPTER_STORE"],
            help="Folder or bucket of the adapters' bytes.",
        ),
    ],
    adapter_cache: Annotated[
        Path,
        typer.Option(envvar="TENFOLD_ADAPTER_CACHE", help="Where copies of a bucket's are kept."),
    ] = DEFAULT_CACHE,
    adapter_cache_bytes: Annotated[
        int, typer.Option(envvar="TENFOLD_ADAPTER_CACHE_BYTES", help="Bytes of all copies.")
    ] = DEFAULT_CACHE_BYTES,
    model_id: Annotated[
        str | None, typer.Option(envvar="TENFOLD_MODEL_ID", help="The base's name in requests.")
    ] = None,
    device: Annotated[
        DeviceOption,
        typer.Option(envvar="TENFOLD_DEVICE", help="auto: a GPU where there is one."),
    ] = "auto",
    dtype: Annotated[
        Dtype | None,
        typer.Option(envvar="TENFOLD_DTYPE", help="Default: float32 on a CPU, bfloat16 on a GPU."),
    ] = None,
    batch_invariant: Annotated[
        bool,
        typer.Option(
            envvar="TENFOLD_BATCH_INVARIANT",
            help="Bits of an answer depend on nothing but base, adapter and tokens.",
        ),
    ] = False,
    pool_bytes: Annotated[
        int | None,
        typer.Option(
            envvar="TENFOLD_POOL_BYTES",
            help="Memory of the page pool, whatever the device. Default: as the next two say.",
        ),
    ] = None,
    cpu_pool_bytes: Annotated[
        int, typer.Option(envvar="TENFOLD_CPU_POOL_BYTES", help="The page pool on a CPU.")
    ] = CPU_POOL_BYTES,
    gpu_memory_utilization: Annotated[
        float,
        typer.Option(
            envvar="TENFOLD_GPU_MEMORY_UTILIZATION",
            min=0.0,
            max=1.0,
            help="Share of a GPU's memory to use: the pool is what the model leaves of it.",
        ),
    ] = GPU_MEMORY_UTILIZATION,
    prefix_caching: Annotated[
        bool,
        typer.Option(
            envvar="TENFOLD_PREFIX_CACHING",
            help="Keep what prompts that begin alike have in common.",
        ),
    ] = True,
    prefix_protected_share: Annotated[
        float,
        typer.Option(
            envvar="TENFOLD_PREFIX_PROTECTED_SHARE",
            min=0.0,
            max=1.0,
            help="Share of the pool where tenants' cached prefixes are safe from each other.",
        ),
    ] = PREFIX_PROTECTED_SHARE,
    shared_prefixes: Annotated[
        Path | None,
        typer.Option(
            envvar="TENFOLD_SHARED_PREFIXES",
            help="JSON file: lists of token ids; tenants share these prefixes on the base model.",
        ),
    ] = None,
    certified_only: Annotated[
        bool,
        typer.Option(
            envvar="TENFOLD_CERTIFIED_ONLY",
            help="Load no adapter that has no certificate. Off while older workers still run.",
        ),
    ] = True,
    debug_poison_pages: Annotated[
        bool,
        typer.Option(
            envvar="TENFOLD_DEBUG_POISON_PAGES", help="Overwrite every page that becomes free."
        ),
    ] = False,
    preemption: Annotated[
        Preemption,
        typer.Option(
            envvar="TENFOLD_PREEMPTION",
            help="A preempted request's pages: moved to the host, computed again, or the cheaper.",
        ),
    ] = "auto",
    host_bytes: Annotated[
        int,
        typer.Option(
            envvar="TENFOLD_HOST_BYTES",
            min=0,
            help="Host memory for preempted requests' pages and adapters that left the pool.",
        ),
    ] = HOST_BYTES,
    max_num_seqs: Annotated[
        int, typer.Option(envvar="TENFOLD_MAX_NUM_SEQS", help="Sequences in one step.")
    ] = 32,
    max_num_batched_tokens: Annotated[
        int, typer.Option(envvar="TENFOLD_MAX_NUM_BATCHED_TOKENS", help="Tokens in one step.")
    ] = 128,
    threads: Annotated[
        int | None, typer.Option(envvar="TENFOLD_THREADS", help="CPU threads of the model.")
    ] = None,
    drain_s: Annotated[
        float,
        typer.Option(
            envvar="TENFOLD_DRAIN_S",
            help="After SIGTERM, what runs may go on for so long; then other engines take over.",
        ),
    ] = 8.0,
    step_limit_s: Annotated[
        float,
        typer.Option(
            envvar="TENFOLD_STEP_LIMIT_S", help="A step that takes longer ends the engine."
        ),
    ] = 5.0,
    health_port: Annotated[
        int | None,
        typer.Option(
            envvar="TENFOLD_HEALTH_PORT", help="Where probes ask. Default: nowhere.", max=65535
        ),
    ] = None,
    health_host: Annotated[
        str, typer.Option(envvar="TENFOLD_HEALTH_HOST", help="Address of that port.")
    ] = "127.0.0.1",
    engine_id: Annotated[
        str | None, typer.Option(envvar="TENFOLD_ENGINE_ID", help="Default: host and pid.")
    ] = None,
) -> None:
    """Serve one base model and the adapters on it, from the queue at --redis-url."""
    if device == "cuda" and not has_cuda():
        raise typer.BadParameter(
            "no CUDA device is usable here (is this a CPU build of torch?)", param_hint="--device"
        )
    secret = os.environ.get(QUEUE_SECRET, "")  # no option: argument lists are for all to see
    if not secret:
        raise typer.BadParameter("the same as the API's and the worker's", param_hint=QUEUE_SECRET)
    name = engine_id or f"{socket.gethostname()}-{os.getpid()}"
    configure_logging("engine", engine_id=name)
    try:
        tracing = open_tracing("engine", os.environ.get(ENDPOINT))
    except TracingMissingError as error:
        raise typer.BadParameter(str(error), param_hint=ENDPOINT) from error
    health, meters = EngineHealth(), EngineMeters()
    metrics = EngineMetrics(health, meters)
    if health_port is not None:
        HealthServer(health_host, health_port, health, metrics.pages)
    torch.set_num_threads(threads or default_threads())
    chosen = choose_device(device, has_cuda=has_cuda())
    config = EngineConfig(
        device=chosen,
        dtype=dtype or default_dtype(chosen),
        batch_invariant=batch_invariant,
        pool_bytes=pool_bytes,
        cpu_pool_bytes=cpu_pool_bytes,
        gpu_memory_utilization=gpu_memory_utilization,
        prefix_caching=prefix_caching,
        prefix_protected_share=prefix_protected_share,
        shared_prefixes=read_shared_prefixes(shared_prefixes),
        debug_poison_pages=debug_poison_pages,
        preemption=preemption,
        host_bytes=host_bytes,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        drain_s=drain_s,
        step_limit_s=step_limit_s,
    )
    base = BaseSpec.from_folder(model, model_id)
    log.info(
        "engine_starting",
        model=base.model_id,
        device=config.device,
        dtype=config.dtype,
    )
    runner = open_runner(config, base, model)
    config = runner.config
    certificates = Certificates(secret, base.fingerprint)

    def admits(ref: AdapterRef) -> bool:
        return not certified_only or certificates.is_valid(ref.digest, ref.certificate)

    loader = AdapterLoader(
        open_store(adapter_store, cache=adapter_cache, max_cache_bytes=adapter_cache_bytes),
        base,
        runner.base_tensors,
        prepare=runner.prepare_adapter,
        on_completed=lambda: loop.wake(),
        admits=admits,
    )
    core = EngineCore(config, base, runner, loader, name, admits=admits)
    transport = EngineTransport(redis_url, name, secret=secret)
    loop = EngineLoop(
        core,
        transport,
        config,
        on_hang=lambda: os._exit(HUNG_EXIT_CODE),
        observers=Observers(meters, RequestTracer(tracing.tracer, name, base.model_id)),
    )
    end_on_signals(loop)
    split = split_memory(config, base)
    log.info(
        "engine_ready",
        memory=str(split),
        **asdict(split),
        threads=torch.get_num_threads(),
    )
    metrics.watch(core, loop, config, base.model_id)
    health.watch(loop)
    freeze_startup()
    loop.run()
    loader.close()
    tracing.close()
    log.info("engine_stopped")


def read_shared_prefixes(path: Path | None) -> tuple[tuple[int, ...], ...]:
    """The lists of token ids in a JSON file.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError: it holds something else.
    """
    if path is None:
        return ()
    return msgspec.json.decode(path.read_bytes(), type=tuple[tuple[int, ...], ...])


def end_on_signals(loop: EngineLoop) -> None:
    """The first signal drains the engine, the second ends it after the current step."""
    call_on_signals(lambda: loop.stop() if loop.is_draining else loop.drain())


def default_threads() -> int:
    """The cores this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def main() -> None:
    """The command line of `python -m engine` and `tenfold engine`."""
    typer.run(serve)
