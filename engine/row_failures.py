"""What goes wrong with one row of a step, and not with its neighbours'.

A runner raises `RowsFailedError` before it launches anything, or gives a row an `EngineError` in
the place of its token. Knows nothing of what rows compute. Whatever else a runner raises at
launch concerns the step as a whole; the core then runs the step's halves.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.messages import EngineError
from engine.sequence import Sequence

INTERNAL_ERROR = EngineError(code="internal_error", message="The engine failed on this request.")
NONFINITE_LOGITS = EngineError(
    code="nonfinite_logits", message="The model gave no finite scores for the next token."
)

Outcome = int | EngineError
"""Of a row that samples: its token, or why there is none."""


class RowsFailedError(Exception):
    """Some rows of a step cannot be prepared; nothing was launched, and the others may be."""

    def __init__(self, causes: Mapping[Sequence, Exception]) -> None:
        super().__init__(f"{len(causes)} rows could not be prepared")
        self.causes = causes
