"""What clients get of inference, and how fast: by tenant, the busiest by name.

Names are vLLM's after the prefix, where vLLM has them; what OpenTelemetry calls them is in
docs/operations.md. Knows nothing of HTTP or of engines. Invariant: a tenant's label is its id or
`other` (`app.metrics.top`), and reasons are codes of ours: no model, no request, no text.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram

from app.errors import ApiError
from app.metrics.top import OTHER, TopLabels
from engine.exposition import LATENCY_S, TOKEN_S
from engine.messages import FinishReason, TokenOutput

CLIENT_GONE = "client_gone"
INTERNAL = "internal_error"
REJECTIONS = (429, 503)
SUCCESSES = (FinishReason.STOP, FinishReason.LENGTH)


class AnswerMetrics:
    """Of one API process; answers are told one by one with `watch`."""

    def __init__(
        self,
        registry: CollectorRegistry,
        top_tenants: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        is_awaited: bool = True,
    ) -> None:
        """is_awaited: whether somebody waits for the answers; only then it counts how long."""
        self._registry = registry
        self.is_awaited = is_awaited
        self._clock = clock
        self._top = TopLabels(top_tenants, self._forget)
        self.received = self._counter("tenfold_requests_received", "Requests for an answer.")
        self.rejected = self._counter(
            "tenfold_requests_rejected",
            "Of these, refused by a limit, for load, or for want of something: by code.",
            "reason",
        )
        self.failed = self._counter(
            "tenfold_requests_failed", "Accepted, and ended without an answer: by code.", "reason"
        )
        self.success = self._counter(
            "tenfold_request_success", "Choices that ended well.", "finished_reason"
        )
        self.prompt_tokens = self._counter("tenfold_prompt_tokens", "Tokens of prompts.")
        self.cached_tokens = self._counter(
            "tenfold_cached_prompt_tokens", "Of these, taken from a prefix cache."
        )
        self.generation_tokens = self._counter(
            "tenfold_generation_tokens", "Tokens that were delivered."
        )
        self.first_token = self._histogram(
            "tenfold_time_to_first_token_seconds",
            "From the arrival of a request to its first token.",
            LATENCY_S,
        )
        self.inter_token = self._histogram(
            "tenfold_inter_token_latency_seconds", "Between two tokens of a choice.", TOKEN_S
        )
        self.latency = self._histogram(
            "tenfold_e2e_request_latency_seconds",
            "From the arrival of a request to its last token; of those that ended well.",
            LATENCY_S,
        )

    @contextmanager
    def watch(
        self, tenant_id: str, *, waited_s: float, num_choices_per_prompt: int
    ) -> Iterator[AnswerWatch]:
        """One answer, until the block ends, and however it does; waited_s: since it arrived."""
        self.received.labels(self._top.label(tenant_id)).inc()
        watch = AnswerWatch(
            self, tenant_id, self._clock() - waited_s, num_choices_per_prompt, self._clock
        )
        try:
            yield watch
        except ApiError as error:
            is_rejected = error.status in REJECTIONS and not watch.has_begun
            counter = self.rejected if is_rejected else self.failed
            counter.labels(self.label(tenant_id), error.code).inc()
            raise
        except (CancelledError, GeneratorExit):
            self.failed.labels(self.label(tenant_id), CLIENT_GONE).inc()
            raise
        except Exception:  # counted, and raised on
            self.failed.labels(self.label(tenant_id), INTERNAL).inc()
            raise
        else:
            if self.is_awaited:
                self.latency.labels(self.label(tenant_id)).observe(watch.elapsed_s)
        finally:
            self._count(tenant_id, watch)

    def turned_away(self, tenant_id: str | None, code: str) -> None:
        """It was refused before there was an answer to watch; None: nobody knows whose it is."""
        tenant = OTHER if tenant_id is None else self._top.label(tenant_id)
        self.received.labels(tenant).inc()
        self.rejected.labels(tenant, code).inc()

    def label(self, tenant_id: str) -> str:
        return self._top.name_of(tenant_id)

    def _count(self, tenant_id: str, watch: AnswerWatch) -> None:
        tenant = self._top.label(tenant_id, float(watch.num_prompt_tokens + watch.num_tokens))
        self.prompt_tokens.labels(tenant).inc(watch.num_prompt_tokens)
        self.cached_tokens.labels(tenant).inc(watch.num_cached_tokens)
        self.generation_tokens.labels(tenant).inc(watch.num_tokens)

    def _forget(self, tenant: str) -> None:
        """It has no series of its own any more."""
        for metric in (
            *(self.received, self.rejected, self.failed, self.success),
            *(self.prompt_tokens, self.cached_tokens, self.generation_tokens),
            *(self.first_token, self.inter_token, self.latency),
        ):
            metric.remove_by_labels({"tenant": tenant})

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, ("tenant", *labels), registry=self._registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, what, ("tenant",), buckets=buckets, registry=self._registry)


class AnswerWatch:
    """One answer as its tokens come. Knows when, how many, and how each choice ended."""

    def __init__(
        self,
        metrics: AnswerMetrics,
        tenant_id: str,
        arrived_at: float,
        num_choices_per_prompt: int,
        clock: Callable[[], float],
    ) -> None:
        self._metrics = metrics
        self._tenant_id = tenant_id
        self._arrived_at = arrived_at
        self._num_choices_per_prompt = num_choices_per_prompt
        self._clock = clock
        self._last_at: dict[int, float] = {}
        self._ended: dict[int, str] = {}
        self.first_token_s: float | None = None
        self.num_tokens = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0

    @property
    def has_begun(self) -> bool:
        return self.first_token_s is not None

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._arrived_at

    @property
    def finish_reasons(self) -> list[str]:
        """Of the choices that ended well, in their order."""
        return [reason for _, reason in sorted(self._ended.items())]

    def took(self, place: int, output: TokenOutput) -> None:
        """What came of the choice at `place`."""
        now, num_tokens = self._clock(), len(output.token_ids)
        if num_tokens:
            self._took_tokens(place, output, num_tokens, now)
        if output.finish_reason in SUCCESSES:
            self.ended(place, output.finish_reason.value)

    def ended(self, place: int, reason: str) -> None:
        """The choice at `place` ended well; only the first time counts."""
        if place not in self._ended:
            self._ended[place] = reason
            label = self._metrics.label(self._tenant_id)
            self._metrics.success.labels(label, reason).inc()

    def _took_tokens(self, place: int, output: TokenOutput, num_tokens: int, now: float) -> None:
        label = self._metrics.label(self._tenant_id)
        last_at = self._last_at.get(place)
        if last_at is not None:
            self._metrics.inter_token.labels(label).observe((now - last_at) / num_tokens)
        elif place % self._num_choices_per_prompt == 0:  # a prompt counts once
            self.num_prompt_tokens += output.num_prompt_tokens
            self.num_cached_tokens += output.num_cached_tokens
        if self.first_token_s is None:
            self.first_token_s = now - self._arrived_at
            if self._metrics.is_awaited:
                self._metrics.first_token.labels(label).observe(self.first_token_s)
        self._last_at[place] = now
        self.num_tokens += num_tokens
