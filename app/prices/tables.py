"""The table of prices. Knows nothing of what was used.

Invariants the database itself keeps: an hour has one price for a base and a tenant, and none below
nothing; row-level security (migration 0004) is forced.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from sqlalchemy import CheckConstraint, Numeric, UniqueConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from app.tables import Table


class Price(Table):
    """What a million tokens on a base cost from `effective_at` on; of all tenants, or of one."""

    __tablename__ = "prices"
    __table_args__ = (
        UniqueConstraint(
            "base_model_id", "tenant_id", "effective_at", postgresql_nulls_not_distinct=True
        ),
        CheckConstraint(
            "effective_at = date_trunc('hour', effective_at, 'UTC')", name="effective_at"
        ),
        CheckConstraint("least(input_price, cached_price, output_price) >= 0", name="price"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str | None]
    base_model_id: Mapped[str]
    currency: Mapped[str]
    input_price: Mapped[Decimal] = mapped_column(Numeric(18, 6))
    cached_price: Mapped[Decimal] = mapped_column(Numeric(18, 6))
    output_price: Mapped[Decimal] = mapped_column(Numeric(18, 6))
    effective_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
