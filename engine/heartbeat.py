"""What an engine tells the queue of itself, again and again: that it lives, and what it has.

Knows nothing of threads or of the step loop. Invariant: what a beat could not tell of adapters and
of commands, a later one tells; adapters that were told of, and are still here, are not told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue

from engine.adapter_key import AdapterKey
from engine.loop_items import adapter_ref, drained
from engine.messages import Abort, AdapterAck, AdapterReport
from engine.transport.server import EngineStatus, EngineTransport


class Heartbeat:
    """Of one engine; `beat` is for one thread."""

    def __init__(
        self,
        transport: EngineTransport,
        report: Callable[[], Mapping[AdapterKey, AdapterReport]],
        acks: SimpleQueue[AdapterAck],
    ) -> None:
        """report: how adapters stand. acks: what came of commands, put there by the step loop."""
        self._transport = transport
        self._report = report
        self._acks = acks
        self._told: frozenset[AdapterKey] = frozenset()
        self._untold_acks: list[AdapterAck] = []

    def beat(self, status: EngineStatus, adapters: frozenset[AdapterKey]) -> Iterable[Abort]:
        """Tell how the engine stands and which adapters are in its pool.

        Returns the requests here whose API process is gone. Raises QueueUnavailableError.
        """
        transport, told = self._transport, self._told
        transport.heartbeat(status)
        if adapters != told:
            transport.update_resident(
                map(adapter_ref, adapters - told), map(adapter_ref, told - adapters)
            )
            self._told = adapters
        transport.levers.report(self._report())
        self._untold_acks += drained(self._acks)
        if self._untold_acks:
            transport.levers.answer(self._untold_acks)
            self._untold_acks.clear()
        return transport.find_orphans()
