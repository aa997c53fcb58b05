"""Prices as the admin API shows and takes them: decimals per million tokens, in strings.

Knows nothing of SQL. Invariant: no price passes through a float.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints

from app.bodies import Body, Line, Timestamp
from app.etags import Tagged
from app.prices.tables import Price
from app.usage.schemas import decimal_text

MAX_TIME = int(datetime(3000, 1, 1, tzinfo=UTC).timestamp())

PerMillion = Annotated[Decimal, Field(ge=0, max_digits=18, decimal_places=6)]
Currency = Annotated[str, StringConstraints(pattern=r"^[a-z]{3}$")]


class PriceCreate(Body):
    """`tenant` is an id or a slug; without it the price is everybody's.

    `base_model` defaults to the base that is served, `cached` to `input`, `effective_at` (seconds
    since 1970, a whole hour) to the hour that began last, or where that has a price to the next.
    """

    tenant: Line | None = None
    base_model: Line | None = None
    currency: Currency
    input: PerMillion
    cached: PerMillion | None = None
    output: PerMillion
    effective_at: Annotated[int, Field(ge=0, le=MAX_TIME)] | None = None


class PriceView(Tagged):
    object: Literal["price"] = "price"
    id: str
    tenant_id: str | None
    base_model: str
    currency: str
    input: str
    cached: str
    output: str
    effective_at: Timestamp
    created: Timestamp

    @classmethod
    def of(cls, price: Price) -> Self:
        return cls(
            id=price.id,
            tenant_id=price.tenant_id,
            base_model=price.base_model_id,
            currency=price.currency,
            input=decimal_text(price.input_price),
            cached=decimal_text(price.cached_price),
            output=decimal_text(price.output_price),
            effective_at=price.effective_at,
            created=price.created_at,
        )
