"""Usage as it is asked for and shown. The names are those of OpenAI's usage API where it has them.

Knows nothing of SQL. Invariant: money is a decimal in a string, never a float.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel

from app.bodies import Timestamp
from app.usage.repository import UsageRow

BucketWidth = Literal["1m", "1h", "1d"]
Format = Literal["json", "csv"]

WIDTHS: dict[BucketWidth, timedelta] = {
    "1m": timedelta(minutes=1),
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
}
MAX_BUCKETS: dict[BucketWidth, int] = {"1m": 1440, "1h": 744, "1d": 366}
DEFAULT_BUCKETS: dict[BucketWidth, int] = {"1m": 60, "1h": 24, "1d": 7}


class Amount(BaseModel):
    value: str
    currency: str


class UsageResult(BaseModel):
    """What one group used; its ids are null where it was not asked for by them, or has none."""

    object: Literal["usage.result"] = "usage.result"
    tenant_id: str | None = None
    api_key_id: str | None = None
    adapter_id: str | None = None
    adapter_version_id: str | None = None
    base_model: str | None = None
    service_tier: str | None = None
    num_model_requests: int
    num_unpriced_requests: int
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    output_reasoning_tokens: int
    queue_ms: int
    adapter_load_ms: int
    amounts: list[Amount]


class UsageBucket(BaseModel):
    object: Literal["bucket"] = "bucket"
    start_time: Timestamp
    end_time: Timestamp
    results: list[UsageResult]


class UsagePage(BaseModel):
    object: Literal["page"] = "page"
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


@dataclass(slots=True)
class Used:
    """Rows of one group in one bucket put together, whatever their prices."""

    group: dict[str, str]
    measures: dict[str, int] = field(default_factory=dict)
    amounts: dict[str, Decimal] = field(default_factory=dict)
    num_unpriced: int = 0

    def add(self, row: UsageRow) -> None:
        for name, number in row.measures.items():
            self.measures[name] = self.measures.get(name, 0) + number
        if row.currency is None or row.amount is None:
            self.num_unpriced += row.measures["num_requests"]
        else:
            self.amounts[row.currency] = self.amounts.get(row.currency, Decimal()) + row.amount

    def view(self) -> UsageResult:
        group = {name: value or None for name, value in self.group.items()}
        used = self.measures
        return UsageResult(
            tenant_id=group.get("tenant_id"),
            api_key_id=group.get("key_id"),
            adapter_id=group.get("adapter_id"),
            adapter_version_id=group.get("adapter_version_id"),
            base_model=group.get("base_model_id"),
            service_tier=group.get("service_tier"),
            num_model_requests=used["num_requests"],
            num_unpriced_requests=self.num_unpriced,
            input_tokens=used["input_tokens"],
            input_cached_tokens=used["cached_tokens"],
            output_tokens=used["output_tokens"],
            output_reasoning_tokens=used["reasoning_tokens"],
            queue_ms=used["queue_ms"],
            adapter_load_ms=used["adapter_load_ms"],
            amounts=[
                Amount(value=decimal_text(amount), currency=currency)
                for currency, amount in sorted(self.amounts.items())
            ],
        )


def decimal_text(amount: Decimal) -> str:
    """Without an exponent and without zeros that say nothing."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def together(rows: Iterable[UsageRow]) -> dict[datetime, list[Used]]:
    """By the start of their bucket."""
    found: dict[datetime, dict[tuple[str, ...], Used]] = {}
    for row in rows:
        groups = found.setdefault(row.start, {})
        groups.setdefault(tuple(row.group.values()), Used(row.group)).add(row)
    return {start: list(groups.values()) for start, groups in found.items()}
