"""Golden prompts on their way from the API to a worker: sealed while their rollout is open.

Knows nothing of how they are asked. Invariant: no prompt is in a table in clear.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.rollouts.golden_schemas import GoldenPrompt
from app.sealing import RecordSealer

_PURPOSE = b"tenfold golden prompts, version 1\x01"


class GoldenSealer:
    def __init__(self, queue_secrets: str) -> None:
        """queue_secrets: one, or several with commas between."""
        self._sealer = RecordSealer(queue_secrets, _PURPOSE)

    def seal(self, rollout_id: str, prompts: Sequence[GoldenPrompt]) -> bytes:
        stored = [each.stored() for each in prompts]
        return self._sealer.seal(rollout_id, msgspec.json.encode(stored))

    def open(self, rollout_id: str, sealed: bytes) -> list[GoldenPrompt]:
        """Raises SealBrokenError."""
        stored = msgspec.json.decode(self._sealer.open(rollout_id, sealed))
        return [GoldenPrompt.model_validate(each) for each in stored]
