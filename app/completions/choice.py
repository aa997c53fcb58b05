"""One choice of an answer: its tokens become text that may be shown, and it ends.

Knows nothing of HTTP, queues or other choices. Invariant: the text and the count of tokens depend
on the tokens alone, never on how the engine's messages grouped them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from app.completions.detokenizer import Detokenizer
from app.completions.stops import StopMatcher
from engine.messages import FinishReason, TokenOutput
from engine.reasoning import ReasoningCount


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice gained. `finish_reason` is OpenAI's, on the last one only."""

    choice: int
    text: str
    finish_reason: str | None = None


class Choice:
    """Detokeniser, stop strings and counts of one sequence."""

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        stop_token_ids: Collection[int],
        reasoning: ReasoningCount | None = None,
    ) -> None:
        """reasoning: where the base has tokens for it. Counted here too, because a stop string may
        end an answer before its last token."""
        self.index = index
        self.finish_reason: str | None = None
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._reasoning = reasoning

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_reasoning_tokens(self) -> int:
        """Of `num_tokens`."""
        return 0 if self._reasoning is None else self._reasoning.num_tokens

    def take(self, output: TokenOutput) -> Delta:
        """Take the next tokens. Those after a stop string count for nothing."""
        assert not self.is_finished, "tokens after the end"
        self.num_cached_tokens = output.num_cached_tokens
        text = ""
        for position, token_id in enumerate(output.token_ids, start=output.index):
            self.num_tokens = position + 1
            if self._reasoning is not None:
                self._reasoning.take(token_id)
            if token_id not in self._stop_token_ids:
                text += self._show(self._detokenizer.push(token_id))
            if self.is_finished:
                return Delta(self.index, text, self.finish_reason)
        if output.finish_reason is not None:
            text += self._end(output.finish_reason)
        return Delta(self.index, text, self.finish_reason)

    def _show(self, text: str) -> str:
        result = self._stops.push(text)
        if result.is_matched:
            self.finish_reason = FinishReason.STOP.value
        return result.text

    def _end(self, reason: FinishReason) -> str:
        text = self._show(self._detokenizer.flush())
        if not self.is_finished:
            text += self._stops.flush()
            self.finish_reason = reason.value
        return text
