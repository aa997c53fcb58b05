"""What a beat of the heart could not tell, the next one tells; what was told is not told again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from queue import SimpleQueue
from typing import Any

import pytest

from engine.adapter_key import AdapterKey, adapter_key
from engine.heartbeat import Heartbeat
from engine.loop_items import Snapshot
from engine.messages import Abort, AdapterAck, AdapterRef, AdapterReport, Outcome
from engine.transport.errors import QueueUnavailableError
from engine.transport.server import EngineStatus
from tests.builders.scripted_loader import make_ref

A, B = adapter_key(make_ref("a")), adapter_key(make_ref("b"))
WITH_A = Snapshot(num_sequences=5, num_running=2, adapters=frozenset({A}))
STATUS = EngineStatus(num_running=2, num_waiting=3, num_pages=64)


class Told:
    """A transport that writes down what it is told, and may be away when one thing is."""

    def __init__(self) -> None:
        self.levers = self
        self.away_at = ""
        self.told: list[tuple[str, Any]] = []

    def heartbeat(self, status: EngineStatus) -> None:
        self._tell("heartbeat", status)

    def update_resident(self, added: Iterable[AdapterRef], gone: Iterable[AdapterRef]) -> None:
        self._tell("resident", (set(map(adapter_key, added)), set(map(adapter_key, gone))))

    def report(self, reports: Mapping[AdapterKey, AdapterReport]) -> None:
        self._tell("report", reports)

    def answer(self, acks: list[AdapterAck]) -> None:
        self._tell("answer", [each.command_id for each in acks])

    def find_orphans(self) -> list[Abort]:
        return []

    def take(self) -> dict[str, Any]:
        told, self.told = self.told, []
        return dict(told)

    def _tell(self, what: str, value: Any) -> None:
        if what == self.away_at:
            raise QueueUnavailableError("away")
        self.told.append((what, value))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def acks() -> SimpleQueue[AdapterAck]:
    return SimpleQueue()


@pytest.fixture
def heartbeat(told: Told, acks: SimpleQueue[AdapterAck]) -> Heartbeat:
    transport: Any = told
    return Heartbeat(transport, 64, dict, acks)


def ack(command_id: str) -> AdapterAck:
    return AdapterAck(command_id=command_id, engine_id="e", outcome=Outcome.READY)


def test_adapters_are_told_by_difference(told: Told, heartbeat: Heartbeat) -> None:
    heartbeat.beat(WITH_A, False, {})
    assert told.take() == {"heartbeat": STATUS, "resident": ({A}, set()), "report": {}}
    heartbeat.beat(WITH_A, False, {})
    assert told.take() == {"heartbeat": STATUS, "report": {}}
    heartbeat.beat(Snapshot(adapters=frozenset({B})), False, {})
    assert told.take()["resident"] == ({B}, {A})


@pytest.mark.parametrize("away_at", ["heartbeat", "resident", "report", "answer"])
def test_what_a_beat_could_not_tell_a_later_one_tells(
    told: Told, heartbeat: Heartbeat, acks: SimpleQueue[AdapterAck], away_at: str
) -> None:
    acks.put(ack("first"))
    told.away_at = away_at
    with pytest.raises(QueueUnavailableError):
        heartbeat.beat(WITH_A, False, {})
    acks.put(ack("second"))
    told.away_at = ""
    heartbeat.beat(WITH_A, False, {})
    everything = told.take()
    assert everything["resident"] == ({A}, set())
    assert everything["answer"] == ["first", "second"]
    heartbeat.beat(WITH_A, False, {})
    assert told.take() == {"heartbeat": STATUS, "report": {}}, "and it is told once"
