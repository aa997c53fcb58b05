"""One request inside the engine: its tokens, how many are computed, and its pages.

Holds no tensors. Invariant: `block_table` covers at least `num_computed_tokens`.
"""

from __future__ import annotations

from engine.messages import AdapterRef, EngineRequest, FinishReason


class Sequence:
    """State of one request between `EngineCore.add` and its last token."""

    def __init__(self, request: EngineRequest, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        self.token_ids = [*request.prompt_token_ids, *request.delivered_token_ids]
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_computed_tokens = 0
        self.block_table: list[int] = []
        self.finish_reason: FinishReason | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def adapter(self) -> AdapterRef | None:
        return self.request.adapter

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    def append(self, token_id: int, max_num_tokens: int) -> None:
        """Take a sampled token and see whether it is the last one that fits or is wanted."""
        self.token_ids.append(token_id)
        sampling = self.request.sampling
        if token_id in sampling.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif self.num_generated_tokens >= sampling.max_tokens or self.num_tokens >= max_num_tokens:
            self.finish_reason = FinishReason.LENGTH
