"""Counts what of an answer was reasoning: its tokens from an opening one to the closing one.

By token ids alone: knows nothing of text, and takes nothing out of it. Torch-free, so that an API
process counts the same where it cuts an answer short. Invariant: the count depends on the tokens of
prompt and answer and on nothing else, so that an engine that takes a request over comes to the same
one from the tokens that were delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ReasoningTokens = tuple[int, int]
"""Ids of the tokens that open and close a stretch of reasoning (`lora.base_spec`)."""


class ReasoningCount:
    """Of one answer: `take` its tokens in order.

    Both tokens that enclose a stretch count with it. One that is not closed goes on to the end; an
    opening one within it opens nothing, a closing one outside of it closes nothing.
    """

    __slots__ = ("_closing", "_is_open", "_opening", "num_tokens")

    def __init__(
        self,
        tokens: ReasoningTokens,
        prompt_token_ids: Sequence[int],
        delivered_token_ids: Iterable[int] = (),
    ) -> None:
        """prompt_token_ids: one that ends within a stretch has it go on in the answer.

        delivered_token_ids: of the answer, what another engine has generated of it.
        """
        self._opening, self._closing = tokens
        self._is_open = _ends_within(prompt_token_ids, tokens)
        self.num_tokens = 0
        """Reasoning among the tokens that were taken."""
        for token_id in delivered_token_ids:
            self.take(token_id)

    def take(self, token_id: int) -> int:
        """The answer's next token; `num_tokens` with it."""
        if self._is_open:
            self.num_tokens += 1
            self._is_open = token_id != self._closing
        elif token_id == self._opening:
            self.num_tokens += 1
            self._is_open = True
        return self.num_tokens


def _ends_within(token_ids: Sequence[int], tokens: ReasoningTokens) -> bool:
    """Whether the last of both tokens is an opening one."""
    opening, closing = tokens
    return _last_index(token_ids, opening) > _last_index(token_ids, closing)


def _last_index(token_ids: Sequence[int], token_id: int) -> int:
    """-1 where it is not there. At the speed of `list.index`: prompts are long."""
    try:
        return len(token_ids) - 1 - token_ids[::-1].index(token_id)
    except ValueError:
        return -1
