"""One request inside the engine: its tokens, how many are computed, and its pages.

Holds no tensors. A token that a step in flight samples has a *placeholder* at its place until that
step is collected: `-1 - row`, where the step's sampled ids will have it. So positions are known
before tokens are, and the next step can be built on them. A step counts as computed once it has
been launched. Invariants: `block_table` covers at least `num_computed_tokens`; placeholders come
last in `token_ids`; none is left when no step is in flight.
"""

from __future__ import annotations

from engine.adapter_weights import AdapterWeights
from engine.block_keys import BlockKeys
from engine.messages import EngineRequest, FinishReason
from engine.reasoning import ReasoningCount


class Sequence:
    """State of one request between `EngineCore.add` and its last token."""

    def __init__(
        self, request: EngineRequest, arrival: int, block_keys: BlockKeys | None = None
    ) -> None:
        """block_keys: of the request's own tokens; None where no prefix is cached."""
        self.request = request
        self.adapter = request.adapter
        self.arrival = arrival
        self.block_keys = block_keys
        params = request.sampling
        self.stop_token_ids = params.stop_token_ids
        self.is_greedy = params.temperature == 0 and params.top_k == 0 and params.top_p == 1
        self.token_ids = [*request.prompt_token_ids, *request.delivered_token_ids]
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_placeholders = 0
        self.num_in_flight = 0
        """Steps that were launched with tokens of this sequence and are not collected yet."""
        self.num_tokens_in_flight = 0
        """Tokens that those steps compute."""
        self.num_known_blocks = 0
        """First blocks of the table that the prefix cache has been told of, or gave."""
        self.awaited_key: bytes | None = None
        """The block that it waits for while a running sequence fills it."""
        self.num_cached_tokens: int | None = None
        """Tokens of the prompt that the prefix cache had when this was first admitted."""
        self.queued_at: float | None = None
        """When it first waited, by the engine's clock."""
        self.adapter_load_ms = 0
        """From then until its adapter was here."""
        self.is_load_clocked = False
        """Whether that is known."""
        self.is_charged = bool(request.delivered_token_ids)
        """Its tenant has paid for the prompt, here or where it ran before."""
        self.block_table: list[int] = []
        self.weights: AdapterWeights | None = None
        """Of its adapter, while it holds that; what they are is for kernels to know."""
        self.is_in_place = False
        """Its pages and its adapter's were seen to be filled: they stay so while it runs."""
        self.max_num_tokens = 0
        """It ends when it has so many: as are wanted, or have room. Known when it is admitted."""
        self.reasoning: ReasoningCount | None = None
        """Of what it generated; None where its base has no tokens for it."""
        self.finish_reason: FinishReason | None = None
        self.told_logits: tuple[float, ...] = ()
        """Where its request wants evidence: some of those that its newest token was drawn from."""

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def owner(self) -> tuple[str, int]:
        """Its name in the pool's books: one request may be here under two epochs."""
        return (self.request.request_id, self.request.epoch)

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_tokens(self) -> int:
        """Known tokens and placeholders."""
        return len(self.token_ids)

    @property
    def num_known_tokens(self) -> int:
        return len(self.token_ids) - self.num_placeholders

    @property
    def num_landed_tokens(self) -> int:
        """Computed, by steps that are over."""
        return self.num_computed_tokens - self.num_tokens_in_flight

    @property
    def num_generated_tokens(self) -> int:
        """Known ones: what has been delivered, and is billed."""
        return self.num_known_tokens - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    def resolve(self, token_id: int) -> None:
        """Take the token of the oldest placeholder; see whether it is the last that is wanted."""
        position = len(self.token_ids) - self.num_placeholders
        self.token_ids[position] = token_id
        self.num_placeholders -= 1
        if token_id in self.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif position + 1 >= self.max_num_tokens:
            self.finish_reason = FinishReason.LENGTH
