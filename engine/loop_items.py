"""What the threads of an engine's loop hand to each other.

Values, and how they are made; knows nothing of the threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue

from engine.adapter_key import AdapterKey
from engine.block_keys import BlockKeys
from engine.messages import (
    Abort,
    AdapterAck,
    AdapterRef,
    EngineRequest,
    FinishReason,
    TokenOutput,
)


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


def drained(queue: SimpleQueue[AdapterAck]) -> list[AdapterAck]:
    """What is in the queue now; for its one reader."""
    found = []
    while not queue.empty():
        found.append(queue.get())
    return found


def adapter_ref(key: AdapterKey) -> AdapterRef:
    """A reference that names an adapter; residency is by (tenant, digest) alone."""
    return AdapterRef(tenant_id=key[0], digest=key[1], locator="")


def handed_over(request: EngineRequest) -> TokenOutput:
    """The last that this engine says of it; its tokens have been said."""
    return TokenOutput(
        request_id=request.request_id,
        epoch=request.epoch,
        index=0,
        token_ids=[],
        num_prompt_tokens=len(request.prompt_token_ids),
        num_generated_tokens=0,
        finish_reason=FinishReason.HAND_OVER,
    )
