"""What Prometheus reads from an engine: its meters, and its books as they are when it is asked.

Names are vLLM's after the prefix, where vLLM has them. Runs on the thread of the health port, next
to the step loop: it takes single numbers and copies, and waits for nothing. Invariant: every label
has a bounded set of values: no tenant, no adapter, no request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from engine.adapter_entries import State
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.exposition import CONTENT_TYPE, new_registry, render
from engine.health import DRAINING, FAILED, LOADING, READY, EngineHealth, Page
from engine.loop import EngineLoop
from engine.meters import EngineMeters, Histogram

STAGES = (LOADING, READY, DRAINING, FAILED)


class EngineMetrics:
    """`page` for the health port, from before the model is loaded; `watch` once it is."""

    def __init__(self, health: EngineHealth, meters: EngineMeters) -> None:
        self._registry = new_registry("engine")
        self._registry.register(_StageCollector(health))
        self._meters = meters

    def watch(self, core: EngineCore, loop: EngineLoop, config: EngineConfig, model: str) -> None:
        """From now on show the books of this engine, which serves `model`."""
        self._registry.register(_CoreCollector(core, loop, config, model))
        self._registry.register(_MetersCollector(self._meters))

    def page(self) -> tuple[str, bytes]:
        return CONTENT_TYPE, render(self._registry)

    @property
    def pages(self) -> Mapping[str, Page]:
        """For `HealthServer`."""
        return {"/metrics": self.page}


class _StageCollector(Collector):
    def __init__(self, health: EngineHealth) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        stage = GaugeMetricFamily(
            "tenfold_engine_stage", "1 for the stage that the engine is in.", labels=["stage"]
        )
        for name in STAGES:
            stage.add_metric([name], float(self._health.stage == name))
        yield stage


class _CoreCollector(Collector):
    def __init__(
        self, core: EngineCore, loop: EngineLoop, config: EngineConfig, model: str
    ) -> None:
        self._core = core
        self._loop = loop
        self._config = config
        self._model = model

    def collect(self) -> Iterator[Metric]:
        yield self._info()
        yield from self._requests()
        yield from self._pages()
        yield from self._adapters()
        yield from self._caches()

    def _info(self) -> Metric:
        config = self._config
        info = GaugeMetricFamily(
            "tenfold_engine_info",
            "1; the labels say what the engine serves, and on what.",
            labels=["model", "device", "dtype", "batch_invariant"],
        )
        invariant = str(config.batch_invariant).lower()
        info.add_metric([self._model, config.device, config.dtype, invariant], 1)
        return info

    def _requests(self) -> Iterator[Metric]:
        snapshot, core = self._loop.snapshot, self._core
        num_waiting = snapshot.num_sequences - snapshot.num_running
        yield _gauge(
            "tenfold_num_requests_running", "Sequences in the batch.", snapshot.num_running
        )
        yield _gauge("tenfold_num_requests_waiting", "Sequences that wait here.", num_waiting)
        yield _gauge(
            "tenfold_num_requests_loading",
            "Of those that wait: whose adapter is being read.",
            snapshot.num_loading,
        )
        yield _gauge(
            "tenfold_num_requests_swapped",
            "Of those that wait: whose pages are on the host.",
            core.swapping.num_on_host,
        )
        yield _gauge(
            "tenfold_fairness_spread_tokens",
            "How far the most-served tenant that waits is ahead of the least-served,"
            " in prompt tokens over weight.",
            core.scheduler.service_spread,
        )
        yield _counter("tenfold_engine_steps", "Steps of the model.", core.num_steps)
        yield _gauge(
            "tenfold_unpublished_steps",
            "Steps whose tokens have not reached Redis yet.",
            self._loop.num_unpublished,
        )

    def _pages(self) -> Iterator[Metric]:
        pool, num_adapter = self._core.pool, self._core.residency.num_pages
        num_free, num_cold = pool.num_free, pool.num_cold
        num_used = max(0, pool.num_pages - num_free - num_cold - num_adapter)
        pages = GaugeMetricFamily(
            "tenfold_pages",
            "Pages of the pool: kv of running requests, adapter, cached (prefixes that nobody"
            " runs on), free.",
            labels=["kind"],
        )
        for kind, number in (
            ("kv", num_used),
            ("adapter", num_adapter),
            ("cached", num_cold),
            ("free", num_free),
        ):
            pages.add_metric([kind], number)
        yield pages
        yield _gauge(
            "tenfold_kv_cache_usage_ratio",
            "Share of the pool that running requests and adapters hold.",
            (num_used + num_adapter) / pool.num_pages,
        )
        tier = self._core.host_tier
        host = GaugeMetricFamily(
            "tenfold_host_tier_bytes",
            "Of the host's memory: swapped requests, adapters kept there, what is left.",
            labels=["kind"],
        )
        held, kept = tier.num_held_bytes, tier.num_kept_bytes
        for kind, number in (
            ("swapped", held),
            ("adapter", kept),
            ("free", max(0, tier.max_bytes - held - kept)),
        ):
            host.add_metric([kind], number)
        yield host

    def _adapters(self) -> Iterator[Metric]:
        residency = self._core.residency
        found = residency.num_by_state()
        adapters = GaugeMetricFamily(
            "tenfold_adapters", "Adapters that the engine has or fetches.", labels=["state"]
        )
        for state in State:
            adapters.add_metric([state.name.lower()], found[state])
        yield adapters
        yield _counter(
            "tenfold_adapter_loads", "Adapters that were read (cold).", residency.num_loads
        )
        yield _counter(
            "tenfold_adapter_load_failures",
            "Adapters that could not be read.",
            residency.num_failed_loads,
        )
        yield _counter(
            "tenfold_adapter_load_seconds",
            "What reading, checking and converting adapters took.",
            residency.load_s,
        )
        yield _counter(
            "tenfold_adapter_kept_installs",
            "Adapters that came back into the pool from the host's memory.",
            residency.num_kept_installs,
        )
        yield _counter(
            "tenfold_adapter_evictions", "Adapters that left the pool.", residency.num_evictions
        )

    def _caches(self) -> Iterator[Metric]:
        cache, swapping = self._core.prefix_cache, self._core.swapping
        yield _counter(
            "tenfold_prefix_cache_queries",
            "Tokens that were looked up in the prefix cache.",
            cache.num_query_tokens,
        )
        yield _counter(
            "tenfold_prefix_cache_hits", "Of these, tokens that were there.", cache.num_hit_tokens
        )
        yield _counter(
            "tenfold_prefix_cache_evictions", "Blocks that left the cache.", cache.num_evictions
        )
        yield _counter(
            "tenfold_num_preemptions",
            "Running sequences that had to give their pages up.",
            swapping.num_preempted,
        )
        yield _counter("tenfold_swap_outs", "Of these, moved to the host.", swapping.num_saved)
        yield _counter("tenfold_swap_ins", "Moved back from there.", swapping.num_restored)


class _MetersCollector(Collector):
    def __init__(self, meters: EngineMeters) -> None:
        self._meters = meters

    def collect(self) -> Iterator[Metric]:
        meters = self._meters
        yield _histogram("tenfold_engine_step_seconds", "Time of a step.", meters.step_s)
        yield _histogram(
            "tenfold_request_queue_time_seconds",
            "From when a request was queued until this engine took it.",
            meters.queue_s,
        )
        yield _histogram(
            "tenfold_adapter_wait_seconds",
            "How long requests waited here for an adapter; only those that did.",
            meters.adapter_wait_s,
        )
        yield _counter(
            "tenfold_engine_prompt_tokens",
            "Prompt tokens of requests that ended here.",
            meters.num_prompt_tokens,
        )
        yield _counter(
            "tenfold_engine_cached_prompt_tokens",
            "Of these, taken from the prefix cache.",
            meters.num_cached_tokens,
        )
        yield _counter(
            "tenfold_engine_generation_tokens",
            "Tokens that were generated here.",
            meters.num_generated_tokens,
        )
        yield _counter(
            "tenfold_engine_requests_resumed",
            "Requests that another engine had begun.",
            meters.num_resumed,
        )
        finished = CounterMetricFamily(
            "tenfold_engine_requests_finished",
            "Requests that ended here, by how.",
            labels=["finished_reason"],
        )
        for reason, number in list(meters.num_finished.items()):
            finished.add_metric([reason], number)
        yield finished


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=value)


def _counter(name: str, what: str, value: float) -> Metric:
    """`name` without its `_total`."""
    return CounterMetricFamily(name, what, value=value)


def _histogram(name: str, what: str, values: Histogram) -> Metric:
    return HistogramMetricFamily(name, what, buckets=values.buckets(), sum_value=values.sum)
