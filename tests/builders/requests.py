"""Builds engine requests for tests. Knows nothing of where they go."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from engine.messages import AdapterRef, EngineRequest, SamplingParams

_numbers = count()


def make_request(
    tenant_id: str = "ten_a",
    *,
    api_id: str = "api-test",
    request_id: str | None = None,
    prompt: Sequence[int] = (1, 2, 3),
    max_tokens: int = 4,
    stop_token_ids: tuple[int, ...] = (),
    adapter: AdapterRef | None = None,
    delivered: Sequence[int] = (),
) -> EngineRequest:
    """A greedy request with an id of its own."""
    return EngineRequest(
        request_id=request_id or f"req_{next(_numbers)}",
        tenant_id=tenant_id,
        api_id=api_id,
        epoch=0,
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(
            seed=0, max_tokens=max_tokens, temperature=0.0, stop_token_ids=stop_token_ids
        ),
        adapter=adapter,
        delivered_token_ids=list(delivered),
    )
