"""What the API should have refused; the engine does not trust it.

Knows nothing of what else is here: whether there is room for a request, its scheduler says.
Invariant: what passes has a prompt of known tokens that leaves room for one more, and an adapter
that may be used or is on trial.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from engine.messages import AdapterRef, EngineError, EngineRequest
from engine.transport.certificates import UNCERTIFIED
from lora.base_spec import BaseSpec

log = structlog.get_logger()

POISONED = EngineError(
    code="request_poisoned", message="Engines that ran this request have failed."
)
MAX_DEATHS = 1
"""Engines that a request may have seen die; one more is no accident."""


class RequestCheck:
    """Of one engine and its base."""

    def __init__(self, base: BaseSpec, admits: Callable[[AdapterRef], bool]) -> None:
        """admits: whether an adapter may be used; not asked of one that is on trial."""
        self._max_model_len = base.max_model_len
        self._vocab_size = base.vocab_size
        self._admits = admits

    def error_of(self, request: EngineRequest) -> EngineError | None:
        """Why it is not taken, or None."""
        if request.num_deaths > MAX_DEATHS:
            log.error("request_poisoned", request_id=request.request_id)
            return POISONED
        adapter = request.adapter
        if adapter is not None and not self._may_use(adapter, is_trial=request.wants_evidence):
            log.error("adapter_uncertified", request_id=request.request_id, digest=adapter.digest)
            return UNCERTIFIED
        message = self._wrong_tokens(request)
        return None if message is None else EngineError(code="invalid_prompt", message=message)

    def _may_use(self, adapter: AdapterRef, *, is_trial: bool) -> bool:
        return (is_trial and adapter.is_on_trial) or self._admits(adapter)

    def _wrong_tokens(self, request: EngineRequest) -> str | None:
        tokens = request.prompt_token_ids + request.delivered_token_ids
        if not request.prompt_token_ids or len(tokens) >= self._max_model_len:
            return f"The prompt has {len(tokens)} tokens; 1 to {self._max_model_len - 1} fit."
        # NOTE: an id below 0 would be read as a placeholder, and so as a neighbour's token.
        known = range(self._vocab_size)
        if not all(token in known for token in tokens):
            return f"A token id is outside the vocabulary of {self._vocab_size}."
        if request.sampling.max_tokens <= len(request.delivered_token_ids):
            return "No token is left to generate."
        return None
