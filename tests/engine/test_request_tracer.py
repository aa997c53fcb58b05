"""Spans of a traced request: from when it was queued to its last token, under the API's span."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from engine.messages import EngineError, EngineRequest, FinishReason, TokenOutput
from engine.request_tracer import RequestTracer
from tests.builders.requests import make_request

TRACE, PARENT = "ab" * 16, "cd" * 8
MS = 1_000_000


@dataclass
class Nanoseconds:
    now: int = 10_000 * MS

    def __call__(self) -> int:
        return self.now


class Traced:
    def __init__(self) -> None:
        self.clock = Nanoseconds()
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = RequestTracer(provider.get_tracer("t"), "engine-0", "base", self.clock)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


def request(*, is_traced: bool = True) -> EngineRequest:
    traceparent = f"00-{TRACE}-{PARENT}-01" if is_traced else None
    return msgspec.structs.replace(make_request(), traceparent=traceparent, queue_ms=300, epoch=2)


def output(
    of: EngineRequest,
    num: int,
    end: FinishReason | None = None,
    error: EngineError | None = None,
    epoch: int = 2,
) -> TokenOutput:
    return TokenOutput(
        request_id=of.request_id,
        epoch=epoch,
        index=0,
        token_ids=[1] * num,
        num_prompt_tokens=3,
        num_generated_tokens=num,
        adapter_load_ms=40,
        finish_reason=end,
        error=error,
    )


def test_spans_cover_queue_prefill_and_decode() -> None:
    traced, asked = Traced(), request()
    traced.tracer.leased(asked)
    traced.clock.now += 50 * MS
    traced.tracer.published([output(asked, 1)])
    traced.clock.now += 70 * MS
    traced.tracer.published([output(asked, 2, FinishReason.LENGTH)])
    spans = traced.spans
    waited, whole = spans["queue.wait"], spans["engine.generate"]
    prefill, decode = spans["engine.prefill"], spans["engine.decode"]
    assert (waited.end_time - waited.start_time) == 300 * MS
    assert waited.end_time == whole.start_time == prefill.start_time
    assert (prefill.end_time - prefill.start_time) == 50 * MS
    assert (decode.end_time - decode.start_time) == 70 * MS and decode.end_time == whole.end_time
    for span in (waited, whole):
        assert f"{span.parent.span_id:016x}" == PARENT
    for span in (prefill, decode):
        assert span.parent.span_id == whole.context.span_id
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
    assert whole.attributes["gen_ai.usage.output_tokens"] == 2
    assert whole.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert whole.attributes["tenfold.adapter.load_ms"] == 40
    assert traced.tracer.num_open == 0


def test_a_failure_and_an_abort_are_errors_and_nothing_is_kept() -> None:
    traced, failed, gone = Traced(), request(), request()
    for each in (failed, gone):
        traced.tracer.leased(each)
    error = EngineError(code="adapter_missing", message="")
    traced.tracer.published([output(failed, 0, FinishReason.ERROR, error)])
    assert traced.spans["engine.generate"].status.status_code is StatusCode.ERROR
    assert traced.spans["engine.generate"].status.description == "adapter_missing"
    assert "engine.decode" not in traced.spans
    traced.tracer.ended(gone.request_id, gone.epoch, "abort")
    assert traced.tracer.num_open == 0


def test_an_untraced_request_and_a_lost_lease_make_no_span() -> None:
    traced, plain, lost = Traced(), request(is_traced=False), request()
    traced.tracer.leased(plain)
    traced.tracer.published([output(plain, 1, FinishReason.STOP)])
    assert traced.spans == {} and traced.tracer.num_open == 0
    traced.tracer.leased(lost)
    traced.tracer.published([output(lost, 1, FinishReason.STOP, epoch=1)])
    assert set(traced.spans) == {"queue.wait"}


def test_what_is_said_of_a_lost_lease_does_not_end_the_one_after_it() -> None:
    """The old lease's end may be published when the request is back here under the next epoch."""
    traced, asked = Traced(), request()
    again = msgspec.structs.replace(asked, epoch=3)
    traced.tracer.leased(asked)
    traced.tracer.published([output(asked, 1)])
    traced.tracer.leased(again)
    lost = traced.spans["engine.generate"]
    assert lost.attributes["tenfold.epoch"] == 2
    assert lost.attributes["gen_ai.response.finish_reasons"] == ("lease_lost",)
    traced.clock.now += 50 * MS
    traced.tracer.ended(asked.request_id, 2, "abort")
    traced.tracer.published([output(asked, 1, FinishReason.HAND_OVER)])
    assert traced.tracer.num_open == 1 and traced.spans["engine.generate"] is lost
    traced.tracer.published([output(asked, 3, FinishReason.STOP, epoch=3)])
    whole = traced.spans["engine.generate"]
    assert whole.attributes["tenfold.epoch"] == 3 and whole.end_time - whole.start_time == 50 * MS
    assert whole.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert traced.tracer.num_open == 0
