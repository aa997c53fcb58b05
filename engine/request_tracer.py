"""Spans of what an engine does for requests that are traced: queue, prefill, decode.

    queue.wait          from when it was queued until this engine took it
    engine.generate     from then until its last token, with adapter, cache hits and counts
      engine.prefill    until its first token: the wait for its adapter and its turn is in it
      engine.decode     from the first token on

A `LoopObserver`: it is told on the control and publisher threads and makes spans there, from times
that it noted, so that the step loop does nothing for a trace. Knows nothing of prompts or text.
Invariants: what it keeps of a request is gone when that ends; a request without a `traceparent`
costs a look-up; a lease that was lost and given to this engine once more is spans of its own, and
nothing that is said of the old one ends the new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from engine.messages import EngineRequest, FinishReason, TokenOutput
from engine.tracing import context_of

Attributes = dict[str, AttributeValue]

_FAILED = (FinishReason.ERROR.value, FinishReason.ABORT.value)
LEASE_LOST = "lease_lost"
"""How a lease ends here whose request was given to this engine anew."""


@dataclass(slots=True)
class _Traced:
    request: EngineRequest
    context: Context
    leased_ns: int
    first_token_ns: int | None = None
    num_steps: int = 0


class RequestTracer:
    """One per engine process. clock: nanoseconds since 1970, as OpenTelemetry wants them."""

    def __init__(
        self,
        tracer: Tracer,
        engine_id: str,
        model: str,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._tracer = tracer
        self._engine_id = engine_id
        self._model = model
        self._clock = clock
        self._lock = threading.Lock()
        self._traced: dict[str, _Traced] = {}

    @property
    def num_open(self) -> int:
        """Requests that are here and traced."""
        return len(self._traced)

    def leased(self, request: EngineRequest) -> None:
        if (context := context_of(request.traceparent)) is None:
            return
        now = self._clock()
        with self._lock:
            former = self._traced.get(request.request_id)
            self._traced[request.request_id] = _Traced(request, context, now)
        if former is not None:
            self._make_spans(former, LEASE_LOST, {})
        waited = self._tracer.start_span(
            "queue.wait",
            context,
            kind=SpanKind.CONSUMER,
            start_time=now - request.queue_ms * 1_000_000,
            attributes=self._common(request),
        )
        waited.end(now)

    def stepped(self, seconds: float) -> None:
        """Nothing: this is the step loop."""

    def published(self, outputs: Sequence[TokenOutput]) -> None:
        if not self._traced:
            return
        for output in outputs:
            traced = self._traced.get(output.request_id)
            if traced is not None and traced.request.epoch == output.epoch:
                self._take(traced, output)

    def ended(self, request_id: str, epoch: int, reason: str) -> None:
        if (traced := self._release(request_id, epoch)) is not None:
            self._make_spans(traced, reason, {})

    def _release(self, request_id: str, epoch: int) -> _Traced | None:
        """What was kept of it, if this is the lease that it is here under."""
        with self._lock:
            traced = self._traced.get(request_id)
            if traced is None or traced.request.epoch != epoch:
                return None
            return self._traced.pop(request_id)

    def _take(self, traced: _Traced, output: TokenOutput) -> None:
        traced.num_steps += 1
        if traced.first_token_ns is None and output.token_ids:
            traced.first_token_ns = self._clock()
        if output.finish_reason is None:
            return
        if self._release(output.request_id, output.epoch) is None:
            return  # its lease was found lost meanwhile
        reason = output.finish_reason.value if output.error is None else output.error.code
        counts: Attributes = {
            "gen_ai.usage.input_tokens": output.num_prompt_tokens,
            "gen_ai.usage.output_tokens": output.num_generated_tokens,
            "gen_ai.usage.cache_read.input_tokens": output.num_cached_tokens,
            "tenfold.adapter.load_ms": output.adapter_load_ms,
        }
        self._make_spans(traced, reason, counts, is_failed=output.error is not None)

    def _make_spans(
        self, traced: _Traced, reason: str, counts: Attributes, *, is_failed: bool = False
    ) -> None:
        ended_ns = self._clock()
        attributes: Attributes = {
            **self._common(traced.request),
            **counts,
            "gen_ai.response.finish_reasons": (reason,),
            "tenfold.num_steps": traced.num_steps,
        }
        whole = self._tracer.start_span(
            "engine.generate", traced.context, start_time=traced.leased_ns, attributes=attributes
        )
        if is_failed or reason in _FAILED:
            whole.set_status(Status(StatusCode.ERROR, reason))
        within = set_span_in_context(whole, traced.context)
        prefilled_ns = traced.first_token_ns or ended_ns
        self._part("engine.prefill", within, traced.leased_ns, prefilled_ns)
        if traced.first_token_ns is not None:
            self._part("engine.decode", within, prefilled_ns, ended_ns)
        whole.end(ended_ns)

    def _part(self, name: str, within: Context, started_ns: int, ended_ns: int) -> None:
        self._tracer.start_span(name, within, start_time=started_ns).end(ended_ns)

    def _common(self, request: EngineRequest) -> Attributes:
        attributes: Attributes = {
            "gen_ai.provider.name": "tenfold",
            "gen_ai.request.model": self._model,
            "tenfold.sequence_id": request.request_id,
            "tenfold.engine_id": self._engine_id,
            "tenfold.epoch": request.epoch,
        }
        if request.adapter is not None:
            attributes["tenfold.adapter_digest"] = request.adapter.digest
        return attributes
