"""The arithmetic of a chain: each event's MAC covers the event and the MAC before it.

Knows nothing of SQL. Invariants: every field is length-prefixed, so that two different events never
have the same text; without the secret nobody can compute a MAC, so that whoever writes into the
database alone cannot mend a chain that was changed. What a chain cannot show is that the whole
database was set back to an earlier state: for that, keep a head elsewhere and verify against it.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from engine.transport.secret_list import secrets_of

START = "0" * 64  # what the first event of a chain follows
MAX_FINDINGS = 20
_PURPOSE = b"tenfold.audit.v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Link(NamedTuple):
    """One event as it is in the registry. The fields are the table's columns, in order.

    A tuple, since tens of thousands a second are made of rows.
    """

    tenant_id: str
    seq: int
    id: str
    recorded_at: datetime
    actor: str
    request_id: str
    action: str
    target: str
    before: str | None
    after: str | None
    mac: str


@dataclass(frozen=True, slots=True)
class Head:
    """Where a chain ends."""

    tenant_id: str
    seq: int
    mac: str
    seal: str


def audit_keys(peppers: str) -> tuple[bytes, ...]:
    """The chain's own secrets, derived from the deployment's: one, or several with commas between.

    The first one seals, and any of them verifies.
    """
    return tuple(hmac.digest(text.encode(), _PURPOSE, "sha256") for text in secrets_of(peppers))


def canonical(value: Any) -> str | None:
    """A JSON value as the log keeps it; None stays None."""
    return None if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))


def link_mac(key: bytes, previous: str, link: Link) -> str:
    """The MAC of `link` after the event whose MAC is `previous`."""
    (tenant_id, seq, event_id, recorded_at, actor, request_id, action, target, before, after, _) = (
        link
    )
    number, moment = str(seq), str(_microseconds(recorded_at))
    text = (
        f"5:event{len(previous)}:{previous}{len(tenant_id)}:{tenant_id}{len(number)}:{number}"
        f"{len(event_id)}:{event_id}{len(moment)}:{moment}{len(actor)}:{actor}"
        f"{len(request_id)}:{request_id}{len(action)}:{action}{len(target)}:{target}"
    )
    text += "-" if before is None else f"{len(before)}:{before}"
    text += "-" if after is None else f"{len(after)}:{after}"
    if text.isascii():  # as all is that was recorded here: then characters are bytes
        return hmac.digest(key, text.encode(), "sha256").hex()
    fields = (tenant_id, number, event_id, moment, actor, request_id, action, target, before, after)
    return _mac(key, "event", previous, *fields)


def head_seal(key: bytes, tenant_id: str, seq: int, mac: str) -> str:
    return _mac(key, "head", tenant_id, str(seq), mac)


class Verifier:
    """Follows one chain from its start: `take` its events in order, then `finish` at its head.

    `kept` is the (seq, mac) of an event, written down elsewhere: the chain must still lead past it.
    """

    def __init__(self, keys: Sequence[bytes], kept: tuple[int, str] | None = None) -> None:
        """keys: of `audit_keys`."""
        self._keys = tuple(keys)
        self._kept = kept
        self._previous = START
        self.num_events = 0
        self.findings: list[str] = []

    def take(self, links: Iterable[Link]) -> None:
        for link in links:
            self.num_events += 1
            if link.seq != self.num_events:
                self.find(f"event {self.num_events} is missing or out of order")
                self.num_events = link.seq
            if not self._is_sealed(link):
                self.find(f"event {link.seq} is not what was recorded, or not in its place")
            if self._kept is not None and link.seq == self._kept[0]:
                if link.mac != self._kept[1]:
                    self.find(f"event {link.seq} is another one than that which was kept")
                self._kept = None
            self._previous = link.mac

    def finish(self, head: Head | None) -> None:
        """`head`: the chain's; None where it has none."""
        if self._kept is not None:
            self.find(f"event {self._kept[0]}, which was kept, is missing")
        if head is None:
            self.find("the chain has no head")
            return
        seals = (head_seal(key, head.tenant_id, head.seq, head.mac) for key in self._keys)
        if not any(hmac.compare_digest(head.seal.encode(), seal.encode()) for seal in seals):
            self.find("the head is not what was recorded")
        if (head.seq, head.mac) != (self.num_events, self._previous):
            self.find(f"the chain ends at event {self.num_events}, its head at {head.seq}")

    def _is_sealed(self, link: Link) -> bool:
        """By any of the keys. What was written under an older one is followed by what was not."""
        for index, key in enumerate(self._keys):
            mac = link_mac(key, self._previous, link)
            if hmac.compare_digest(link.mac.encode(), mac.encode()):
                if index:  # those that follow are of the same key, most likely
                    self._keys = (key, *self._keys[:index], *self._keys[index + 1 :])
                return True
        return False

    def find(self, finding: str) -> None:
        """Note something that is not as it should be."""
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)


def _mac(key: bytes, *fields: str | None) -> str:
    return hmac.digest(key, _encode(fields), "sha256").hex()


def _encode(fields: Sequence[str | None]) -> bytes:
    parts: list[bytes] = []
    for field in fields:
        if field is None:
            parts.append(b"-")
        else:
            data = field.encode()
            parts += (b"%d:" % len(data), data)
    return b"".join(parts)


def _microseconds(at: datetime) -> int:
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
