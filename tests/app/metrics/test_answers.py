"""An answer is measured once, by its tenant, however it ends."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from app.errors import RateLimitedError, UnavailableError
from app.metrics.answers import AnswerMetrics
from engine.messages import FinishReason, TokenOutput


@dataclass
class Ticks:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Answers:
    """Metrics of answers, on a clock of their own."""

    def __init__(self, top_tenants: int = 5) -> None:
        self.registry = CollectorRegistry()
        self.ticks = Ticks()
        self.metrics = AnswerMetrics(self.registry, top_tenants, self.ticks)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"tenant": "ten_a", **labels})


def tokens(num: int, *, end: FinishReason | None = None) -> TokenOutput:
    return TokenOutput(
        request_id="x",
        epoch=1,
        index=0,
        token_ids=[7] * num,
        num_prompt_tokens=10,
        num_generated_tokens=num,
        num_cached_tokens=4,
        finish_reason=end,
    )


def test_first_token_counts_from_the_arrival_and_gaps_by_token() -> None:
    answers = Answers()
    with answers.metrics.watch("ten_a", waited_s=0.5, num_choices_per_prompt=2) as watch:
        answers.ticks.now += 1.0
        watch.took(0, tokens(1))
        watch.took(1, tokens(1))
        answers.ticks.now += 0.4
        watch.took(0, tokens(2, end=FinishReason.STOP))
        watch.took(1, tokens(2, end=FinishReason.LENGTH))
    assert answers.value("tenfold_time_to_first_token_seconds_sum") == pytest.approx(1.5)
    assert answers.value("tenfold_time_to_first_token_seconds_count") == 1
    assert answers.value("tenfold_inter_token_latency_seconds_sum") == pytest.approx(2 * 0.2)
    assert answers.value("tenfold_e2e_request_latency_seconds_sum") == pytest.approx(1.9)
    # A prompt counts once, however many choices it has.
    assert answers.value("tenfold_prompt_tokens_total") == 10
    assert answers.value("tenfold_cached_prompt_tokens_total") == 4
    assert answers.value("tenfold_generation_tokens_total") == 6
    for reason in ("stop", "length"):
        assert answers.value("tenfold_request_success_total", finished_reason=reason) == 1


def test_refused_and_failed_are_told_apart_by_whether_it_had_begun() -> None:
    answers = Answers()
    refused = RateLimitedError(type="requests", retry_after_s=1)
    with (
        pytest.raises(RateLimitedError),
        answers.metrics.watch("ten_a", waited_s=0, num_choices_per_prompt=1),
    ):
        raise refused
    with (
        pytest.raises(UnavailableError),
        answers.metrics.watch("ten_a", waited_s=0, num_choices_per_prompt=1) as watch,
    ):
        watch.took(0, tokens(1))
        raise UnavailableError(code="engine_lost")
    with (
        pytest.raises(GeneratorExit),
        answers.metrics.watch("ten_a", waited_s=0, num_choices_per_prompt=1),
    ):
        raise GeneratorExit
    rejected, failed = "tenfold_requests_rejected_total", "tenfold_requests_failed_total"
    assert answers.value(rejected, reason="rate_limit_exceeded") == 1
    assert answers.value(rejected, reason="engine_lost") is None
    assert answers.value(failed, reason="engine_lost") == 1
    assert answers.value(failed, reason="client_gone") == 1
    assert answers.value("tenfold_requests_received_total") == 3
    assert answers.value("tenfold_e2e_request_latency_seconds_count") is None
    assert answers.value("tenfold_generation_tokens_total") == 1  # delivered all the same


def test_series_of_a_tenant_that_is_no_longer_busy_are_removed() -> None:
    answers = Answers(top_tenants=1)
    for tenant, num in (("ten_a", 1), ("ten_b", 50)):
        with answers.metrics.watch(tenant, waited_s=0, num_choices_per_prompt=1) as watch:
            watch.took(0, tokens(num, end=FinishReason.STOP))
    assert answers.value("tenfold_generation_tokens_total") is None
    with answers.metrics.watch("ten_a", waited_s=0, num_choices_per_prompt=1) as watch:
        watch.took(0, tokens(1, end=FinishReason.STOP))
    found = {
        sample.labels["tenant"]
        for metric in answers.registry.collect()
        for sample in metric.samples
        if "tenant" in sample.labels
    }
    assert found == {"ten_b", "other"}
