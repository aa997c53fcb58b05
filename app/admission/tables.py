"""The table of what was used of a day's limits. Knows nothing of limits.

Invariant the database itself keeps: row-level security (migration 0003) is forced.
"""

from __future__ import annotations

from datetime import date

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from app.tables import Table


class Spend(Table):
    """What a tenant, key or adapter used on a day (UTC) of its requests' acceptance.

    Kept with the ledger, in the same transaction. `subject` is `tenant:ten_...`, `key:key_...` or
    `adapter:adp_...`. No foreign key: the bill outlives the tenant.
    """

    __tablename__ = "spend"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    num_tokens: Mapped[int] = mapped_column(BigInteger)
    cost_nanos: Mapped[int] = mapped_column(BigInteger)
    version: Mapped[int] = mapped_column(BigInteger)
