"""What the model routes answer: OpenAI's `model` object, with Tenfold's own fields beside it.

Knows nothing of the registry. Invariant: a model object says which version its name stands for
now; the base stands for itself.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class AdapterFacts(BaseModel):
    """Which version a name stands for now, and of which base it is an adapter."""

    version: str
    digest: str
    base: str


class ModelObject(BaseModel):
    """`x_adapter` is null for the base."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    x_adapter: AdapterFacts | None


class ModelList(BaseModel):
    """The whole list in one page: a tenant's models are what it can name."""

    object: Literal["list"] = "list"
    data: list[ModelObject]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False
