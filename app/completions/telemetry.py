"""What operators see of an answer: its metrics, and its attributes on the request's span.

Attribute names are OpenTelemetry's for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/). Knows nothing of how tokens are made or
shown. Invariant: of what a client sent and got only numbers and the model's name are here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from opentelemetry.trace import Span

from app.adapters.resolver import ResolvedModel
from app.context import AppContext
from app.ids import made_at
from app.metrics.answers import AnswerWatch
from engine.messages import EngineRequest
from engine.tracing import current_span, traceparent_of


@contextmanager
def watched(
    context: AppContext,
    model: ResolvedModel,
    requests: Sequence[EngineRequest],
    num_choices_per_prompt: int,
) -> Iterator[AnswerWatch]:
    """Metrics and span of one answer, from here to the end of the block, however that comes."""
    first, span = requests[0], current_span()
    waited_s = max(0.0, time.time() - made_at(first.request_id.partition("-")[0]))
    _ask(span, model, first, len(requests))
    watch: AnswerWatch | None = None
    try:
        with context.answers.watch(
            first.tenant_id, waited_s=waited_s, num_choices_per_prompt=num_choices_per_prompt
        ) as watch:
            yield watch
    finally:
        if watch is not None:
            _answer(span, watch)


def traced(request: EngineRequest) -> EngineRequest:
    """The same request, which takes the current span along, where that is recorded."""
    traceparent = traceparent_of(current_span())
    if traceparent is None:
        return request
    return msgspec.structs.replace(request, traceparent=traceparent)


def _ask(span: Span, model: ResolvedModel, request: EngineRequest, num_choices: int) -> None:
    if not span.is_recording():
        return
    sampling = request.sampling
    span.set_attributes(
        {
            "gen_ai.provider.name": "tenfold",
            "gen_ai.request.model": model.requested,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.choice.count": num_choices,
            "tenfold.tenant_id": request.tenant_id,
            "tenfold.service_tier": request.service_tier.value,
        }
    )
    if model.digest is not None:
        span.set_attribute("tenfold.adapter_digest", model.digest)


def _answer(span: Span, watch: AnswerWatch) -> None:
    if not span.is_recording():
        return
    span.set_attributes(
        {
            "gen_ai.response.finish_reasons": watch.finish_reasons,
            "gen_ai.usage.input_tokens": watch.num_prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": watch.num_cached_tokens,
            "gen_ai.usage.output_tokens": watch.num_tokens,
        }
    )
    if watch.first_token_s is not None:
        span.set_attribute("gen_ai.response.time_to_first_chunk", watch.first_token_s)
