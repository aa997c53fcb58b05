"""What the threads of an engine's loop hand to each other.

Values only; knows nothing of the threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.block_keys import BlockKeys
from engine.messages import Abort, EngineRequest
from engine.residency import AdapterKey


@dataclass(frozen=True, slots=True)
class Ended:
    """An aborted request, for the publisher: its last count goes out after its last tokens."""

    abort: Abort
    reason: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """A leased request; its blocks are hashed before the step loop sees it."""

    request: EngineRequest
    block_keys: BlockKeys | None


class Tick:
    """Something changed for the core: an adapter arrived, or it is time to stop."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What other threads may know of the core: replaced as a whole after each step."""

    num_sequences: int = 0
    num_running: int = 0
    num_loading: int = 0
    num_free_pages: int = 0
    num_steps: int = 0
    max_loading_us: int = 0
    adapters: frozenset[AdapterKey] = frozenset()
