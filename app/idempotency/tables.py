"""The table of answers that may be asked for again. Migration 0009 is what makes it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import LargeBinary, SmallInteger
from sqlalchemy.orm import Mapped, mapped_column

from app.tables import Table


class IdempotentAnswer(Table):
    """What one `Idempotency-Key` of one owner was answered, sealed under the key itself.

    `owner`: `operator`, or the id of a tenant's key. No foreign key: it is gone within a day.
    """

    __tablename__ = "idempotent_answers"

    owner: Mapped[str] = mapped_column(primary_key=True)
    key_hash: Mapped[str] = mapped_column(primary_key=True)
    request_hash: Mapped[str]
    status: Mapped[int] = mapped_column(SmallInteger)
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    expires_at: Mapped[datetime] = mapped_column(index=True)
