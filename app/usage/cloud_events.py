"""What one request used, as a CloudEvent (CNCF CloudEvents 1.0, JSON format and its batches).

Knows nothing of HTTP or SQL. Invariants: an event's `id` is its request and revision, so that a
receiver knows a repeated one; data are absolute, and a later revision replaces an earlier one.
"""

from __future__ import annotations

from typing import Any

from app.usage.outbox_repository import Claimed

BATCH_TYPE = "application/cloudevents-batch+json"
EVENT_TYPE = "io.tenfold.usage.v1"
SOURCE = "/tenfold/ledger"

_OPTIONAL = ("key_id", "adapter_id", "adapter_version_id", "adapter_digest", "base_model_id")
_PLAIN = (
    "engine_id",
    "finish_reason",
    "service_tier",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "queue_ms",
    "adapter_load_ms",
)


def event_data(claimed: Claimed) -> dict[str, Any]:
    """The event's `data`: names and counts, never a prompt."""
    row = claimed.row
    return {
        "tenant_id": claimed.tenant_id,
        "request_id": claimed.request_id,
        "revision": claimed.revision,
        "accepted_at": row["accepted_at"].isoformat(),
        **{name: row[name] or None for name in _OPTIONAL},
        **{name: row[name] for name in _PLAIN},
    }


def cloud_event(claimed: Claimed, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": f"{claimed.tenant_id}/{claimed.request_id}/{claimed.revision}",
        "source": SOURCE,
        "type": EVENT_TYPE,
        "subject": claimed.request_id,
        "time": claimed.recorded_at.isoformat(),
        "datacontenttype": "application/json",
        "data": data,
    }
