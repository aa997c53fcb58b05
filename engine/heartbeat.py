"""What an engine tells the queue of itself, again and again: that it lives, and what it has.

Knows nothing of threads or of the step loop. Invariant: what a beat could not tell of adapters and
of commands, a later one tells; adapters that were told of, and are still here, are not told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue

from engine.adapter_key import AdapterKey
from engine.loop_items import Snapshot, adapter_ref, drained
from engine.messages import Abort, AdapterAck, AdapterReport
from engine.transport.server import EngineStatus, EngineTransport


class Heartbeat:
    """Of one engine; `beat` is for one thread."""

    def __init__(
        self,
        transport: EngineTransport,
        num_pages: int,
        report: Callable[[], Mapping[AdapterKey, AdapterReport]],
        acks: SimpleQueue[AdapterAck],
    ) -> None:
        """num_pages: of the pool. report: how adapters stand. acks: what came of commands, put
        there by the step loop."""
        self._transport = transport
        self._num_pages = num_pages
        self._report = report
        self._acks = acks
        self._told: frozenset[AdapterKey] = frozenset()
        self._untold_acks: list[AdapterAck] = []

    def beat(
        self, snapshot: Snapshot, is_draining: bool, generated_tokens: Mapping[str, int]
    ) -> Iterable[Abort]:
        """Tell how the engine stands, and which adapters are in its pool.

        generated_tokens: by tenant, since the last beat. Returns the requests here whose API
        process is gone. Raises QueueUnavailableError.
        """
        transport = self._transport
        transport.heartbeat(self._status(snapshot, is_draining, generated_tokens))
        self._tell_adapters(snapshot.adapters)
        transport.levers.report(self._report())
        self._untold_acks += drained(self._acks)
        if self._untold_acks:
            transport.levers.answer(self._untold_acks)
            self._untold_acks.clear()
        return transport.find_orphans()

    def _tell_adapters(self, adapters: frozenset[AdapterKey]) -> None:
        if adapters != self._told:
            self._transport.update_resident(
                map(adapter_ref, adapters - self._told), map(adapter_ref, self._told - adapters)
            )
            self._told = adapters

    def _status(
        self, snapshot: Snapshot, is_draining: bool, generated_tokens: Mapping[str, int]
    ) -> EngineStatus:
        return EngineStatus(
            num_running=snapshot.num_running,
            num_waiting=snapshot.num_sequences - snapshot.num_running,
            num_free_pages=snapshot.num_free_pages,
            num_pages=self._num_pages,
            num_steps=snapshot.num_steps,
            max_loading_us=snapshot.max_loading_us,
            is_draining=int(is_draining),
            generated_tokens=generated_tokens,
        )
