"""An engine's metrics are its books; nothing of a tenant is in them; asking waits for nothing."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.health import EngineHealth, HealthServer
from engine.loop import EngineLoop
from engine.messages import EngineError, FinishReason, TokenOutput
from engine.meters import EngineMeters, Histogram
from engine.metrics import EngineMetrics
from engine.transport.server import EngineTransport
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.requests import make_request
from tests.stub_engine.base import MODEL_ID, stub_base
from tests.stub_engine.clock import VirtualClock
from tests.stub_engine.loader import InstantLoader
from tests.stub_engine.runner import HashRunner

NOBODY = "redis://127.0.0.1:1/0"
Samples = dict[tuple[str, str], float]


def stub_core() -> tuple[EngineCore, EngineConfig]:
    base, clock = stub_base(), VirtualClock()
    config = EngineConfig(debug_poison_pages=True)
    config = config.with_pool_bytes(64 * config.page_bytes(base))
    runner = HashRunner(config, base, clock)
    loader = InstantLoader(runner.memory, clock)
    return EngineCore(config, base, runner, loader, "e", clock=clock), config


def step(core: EngineCore, meters: EngineMeters) -> None:
    for batch in core.step().values():
        meters.published(batch.outputs)


def samples(text: str) -> Samples:
    """By name, and the values of the labels."""
    return {
        (sample.name, " ".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_is_served_are_the_engines_own_books() -> None:
    core, config = stub_core()
    meters, health = EngineMeters(), EngineHealth()
    metrics = EngineMetrics(health, meters)
    server = HealthServer("127.0.0.1", 0, health, metrics.pages)
    url = f"http://127.0.0.1:{server.port}/metrics"
    try:
        loading = samples(httpx.get(url, trust_env=False).text)
        assert loading["tenfold_engine_stage", "loading"] == 1
        assert ("tenfold_engine_steps_total", "") not in loading

        transport = EngineTransport(NOBODY, "e", secret=QUEUE_SECRET)  # never asked
        metrics.watch(core, EngineLoop(core, transport, config), config, MODEL_ID)
        request = make_request("ten_secret", prompt=[5] * 40, max_tokens=3)
        meters.leased(request)
        core.add(request)
        step(core, meters)
        held = samples(httpx.get(url, trust_env=False).text)
        kinds = {kind: held["tenfold_pages", kind] for kind in ("kv", "adapter", "cached", "free")}
        assert sum(kinds.values()) == core.pool.num_pages and kinds["kv"] >= 3
        while core.has_work:
            step(core, meters)
        text = httpx.get(url, trust_env=False).text
    finally:
        server.close()
    ended = samples(text)
    assert ended["tenfold_pages", "kv"] == 0 and ended["tenfold_pages", "cached"] > 0
    assert ended["tenfold_engine_steps_total", ""] == core.num_steps > 0
    assert ended["tenfold_engine_generation_tokens_total", ""] == 3
    assert ended["tenfold_engine_requests_finished_total", "length"] == 1
    assert ended["tenfold_request_queue_time_seconds_count", ""] == 1
    assert "ten_secret" not in text and request.request_id not in text


def test_buckets_are_cumulative_and_hold_their_upper_bound() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 1.1, 2.5, 9):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.5", 4), ("+Inf", 5)]
    assert histogram.sum == pytest.approx(14.1)


def test_ends_are_counted_by_reason_and_what_moved_on_is_not_billed_here() -> None:
    meters = EngineMeters()

    def end(reason: FinishReason, error: EngineError | None = None) -> None:
        output = TokenOutput(
            request_id="r",
            epoch=1,
            index=0,
            token_ids=[1],
            num_prompt_tokens=8,
            num_generated_tokens=1,
            finish_reason=reason,
            error=error,
        )
        meters.published([output])

    end(FinishReason.STOP)
    end(FinishReason.HAND_OVER)
    end(FinishReason.ERROR, EngineError(code="adapter_missing", message=""))
    meters.ended("r", 0, "abort")
    assert meters.num_finished == {"stop": 1, "hand_over": 1, "adapter_missing": 1, "abort": 1}
    assert meters.num_prompt_tokens == 16
