"""What API processes are to be told of their requests, from one step to the next.

Knows nothing of scheduling, nor of how a message gets there. Invariants: outputs of a request are
in the order in which they were made; what is taken is told once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from engine.messages import (
    AdapterRef,
    EngineError,
    Evidence,
    FinishReason,
    ModuleFigure,
    OutputBatch,
    TokenOutput,
)
from engine.sequence import Sequence


class Answers:
    """`add_token` or `add_error` of a sequence, then `take` all."""

    def __init__(
        self,
        engine_id: str,
        figures_of: Callable[[AdapterRef], tuple[ModuleFigure, ...] | None],
    ) -> None:
        """figures_of: as the loader's, for requests that want evidence."""
        self._engine_id = engine_id
        self._figures_of = figures_of
        self._by_api: dict[str, list[TokenOutput]] = defaultdict(list)

    def __bool__(self) -> bool:
        """Whether there is something to be told."""
        return bool(self._by_api)

    def add_token(self, sequence: Sequence) -> None:
        """Its newest token, and how it ended if it did."""
        request, token_ids = sequence.request, sequence.token_ids
        num_known_tokens = len(token_ids) - sequence.num_placeholders
        num_generated_tokens = num_known_tokens - sequence.num_prompt_tokens
        output = TokenOutput(
            request_id=request.request_id,
            epoch=request.epoch,
            index=num_generated_tokens - 1,
            token_ids=[token_ids[num_known_tokens - 1]],
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_generated_tokens=num_generated_tokens,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            adapter_load_ms=sequence.adapter_load_ms,
            finish_reason=sequence.finish_reason,
        )
        if sequence.reasoning is not None:
            num = sequence.reasoning.take(output.token_ids[0])
            output = msgspec.structs.replace(output, num_reasoning_tokens=num)
        if request.wants_evidence:
            output = self._with_evidence(output, sequence)
        self._by_api[request.api_id].append(output)

    def add_error(self, sequence: Sequence, error: EngineError) -> None:
        """It ends with `error`, after the tokens that it has."""
        sequence.finish_reason, reasoning = FinishReason.ERROR, sequence.reasoning
        output = TokenOutput(
            request_id=sequence.request_id,
            epoch=sequence.request.epoch,
            index=sequence.num_generated_tokens,
            token_ids=[],
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_generated_tokens=sequence.num_generated_tokens,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            num_reasoning_tokens=0 if reasoning is None else reasoning.num_tokens,
            adapter_load_ms=sequence.adapter_load_ms,
            finish_reason=FinishReason.ERROR,
            error=error,
        )
        self._by_api[sequence.request.api_id].append(output)

    def take(self) -> dict[str, OutputBatch]:
        """By the id of the API process that is to be told."""
        by_api, self._by_api = self._by_api, defaultdict(list)
        return {
            api_id: OutputBatch(engine_id=self._engine_id, outputs=outputs)
            for api_id, outputs in by_api.items()
        }

    def _with_evidence(self, output: TokenOutput, sequence: Sequence) -> TokenOutput:
        adapter = sequence.adapter
        modules = () if adapter is None else self._figures_of(adapter)
        evidence = Evidence(logits=sequence.told_logits, modules=modules)
        return msgspec.structs.replace(output, evidence=evidence)
