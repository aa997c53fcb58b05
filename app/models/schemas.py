"""What the model routes answer: OpenAI's `model` object, with Tenfold's own fields beside it.

Knows nothing of the registry. Invariant: a model object says which version its name stands for
now; the base stands for itself.
"""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import BaseModel


class AdapterFacts(BaseModel):
    """Which version a name stands for now (most often), and of which base it is an adapter."""

    version: str
    digest: str
    base: str
    state: str | None


class ModelObject(BaseModel):
    """`x_adapter` is null for the base. `shutdown_date`: the first day (UTC) without it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    shutdown_date: date | None
    x_adapter: AdapterFacts | None


class ModelList(BaseModel):
    """The whole list in one page: a tenant's models are what it can name."""

    object: Literal["list"] = "list"
    data: list[ModelObject]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False
