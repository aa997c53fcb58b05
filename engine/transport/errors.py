"""What can go wrong between the API, the queue and an engine, as one tree.

TransportError
├── QueueUnavailableError   Redis did not do it (down, slow, full, read-only): retry later
└── MessageDecodeError      bytes that are not a message of this version
"""

from __future__ import annotations


class TransportError(Exception):
    """The base of all errors of `engine.transport`."""


class QueueUnavailableError(TransportError):
    """The command may or may not have taken effect; every command here may be repeated."""


class MessageDecodeError(TransportError):
    """Not a message of this version's schema."""
