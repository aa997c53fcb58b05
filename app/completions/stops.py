"""Stop strings over a stream of text: what may be shown, and where the text ends.

Knows nothing of tokens or of HTTP. Invariant: what is returned depends on the text alone, never
on how it was cut into pieces, and holds no character of a stop string that was matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopResult:
    """Text that is now safe to show, and whether a stop string ended it."""

    text: str
    is_matched: bool = False


class _Automaton:
    """Knuth-Morris-Pratt over one stop string, fed a character at a time.

    `num_matched` is the length of the longest suffix of the text so far that is a prefix of the
    pattern.
    """

    __slots__ = ("_fallback", "num_matched", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.num_matched = 0
        self._fallback = _failure_function(pattern)

    def is_completed_by(self, char: str) -> bool:
        matched = self.num_matched
        while matched and self.pattern[matched] != char:
            matched = self._fallback[matched - 1]
        if self.pattern[matched] == char:
            matched += 1
        self.num_matched = matched
        return matched == len(self.pattern)


def _failure_function(pattern: str) -> list[int]:
    """`fallback[i]`: length of the longest proper border of `pattern[: i + 1]`."""
    fallback = [0] * len(pattern)
    border = 0
    for i in range(1, len(pattern)):
        while border and pattern[i] != pattern[border]:
            border = fallback[border - 1]
        if pattern[i] == pattern[border]:
            border += 1
        fallback[i] = border
    return fallback


class StopMatcher:
    """Ends the text at the stop string that completes first; of those, the one that starts first.

    Only a suffix that is a proper prefix of some stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""
        self._is_matched = False

    def push(self, text: str) -> StopResult:
        """Take the next piece of text; after a match the rest is dropped."""
        if self._is_matched:
            return StopResult("", is_matched=True)
        if not self._automata:
            return StopResult(text)
        pending = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            # NOTE: every automaton must see every character, so no short-circuit here.
            completed = [a for a in self._automata if a.is_completed_by(char)]
            if completed:
                longest = max(len(a.pattern) for a in completed)
                self._is_matched, self._held = True, ""
                return StopResult(pending[: end - longest], is_matched=True)
        num_held = max(a.num_matched for a in self._automata)
        cut = len(pending) - num_held
        self._held = pending[cut:]
        return StopResult(pending[:cut])

    def flush(self) -> str:
        """The text ended with no stop string: what was held back is ordinary text."""
        held, self._held = self._held, ""
        return held
