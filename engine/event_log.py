"""Logs of every process: JSON events on standard error, one a line, all of one shape.

Knows nothing of what is logged. Torch-free: API and worker use it too. Invariants: an event about a
request has its `request_id` as clients know it (`req_...`), however the code at hand spells it
(`<32 hex digits>-<choice>`, kept as `sequence_id`), so that one search finds a request's whole
story; what could hold a prompt, tokens or a key is not written, and what looks like a key or a
password inside a text is blackened; third-party loggers go through the same renderer at WARNING and
above, and their access logs, which would hold paths and queries, are off.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

FORBIDDEN = frozenset(
    {
        "api_key",
        "authorization",
        "body",
        "completion",
        "content",
        "delivered_token_ids",
        "headers",
        "messages",
        "password",
        "prompt",
        "prompt_token_ids",
        "secret",
        "text",
        "token_ids",
    }
)
"""Fields that no event may have, whatever is in them."""
WITHHELD = "[withheld]"

_SEQUENCE_ID = re.compile(r"([0-9a-f]{32})(?:-[0-9]{1,6})?")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, as in app/ids.py
_NUM_DIGITS = 26
_SECRETS = (
    (re.compile(r"\btfa?_[A-Za-z0-9_-]{20,}"), WITHHELD),  # a tenant's key, the operator's key
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {WITHHELD}"),
    (re.compile(r"(://[^/\s:@]*:)[^@\s/]+@"), rf"\1{WITHHELD}@"),  # of a server, in its URL
)


def configure_logging(process: str, **fields: str) -> None:
    """Call once, when a process starts; `process` and `fields` are in every event."""
    shared = _shared({"process": process, **fields})
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)


def name_request(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Spell `request_id` as clients know it. A structlog processor."""
    given = event.get("request_id")
    if isinstance(given, str) and (found := _SEQUENCE_ID.fullmatch(given)):
        event["request_id"] = request_id_of(found[1])
        event["sequence_id"] = given
    return event


def withhold(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Blacken what must not be written. A structlog processor."""
    for name, value in event.items():
        if name in FORBIDDEN:
            event[name] = WITHHELD
        elif isinstance(value, str):
            event[name] = _blackened(value)
    return event


def request_id_of(hex_digits: str) -> str:
    """`req_...` from the 32 hex digits of a request's number (`app.ids.id_of_hex`)."""
    number = int(hex_digits, 16)
    shifts = range(5 * (_NUM_DIGITS - 1), -1, -5)
    return "req_" + "".join(_ALPHABET[number >> shift & 31] for shift in shifts)


def _blackened(text: str) -> str:
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _shared(fields: Mapping[str, Any]) -> list[Processor]:
    def add_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**event, **fields}

    return [
        structlog.contextvars.merge_contextvars,
        add_fields,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        name_request,
        withhold,
    ]
