"""What every body of the admin API has in common.

Knows nothing of domains. Invariant: an unknown field is refused by name, never ignored, and no
string holds what Postgres cannot store.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
)

MAX_LABELS = 16


def _storable(text: str) -> str:
    if "\x00" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("NUL and lone surrogates are not allowed")
    return text


def _unix_seconds(at: datetime) -> int:
    return int(at.timestamp())


Storable = AfterValidator(_storable)
Label = Annotated[str, StringConstraints(min_length=1, max_length=64), Storable]
LabelValue = Annotated[str, StringConstraints(max_length=512), Storable]
Labels = Annotated[dict[Label, LabelValue], Field(max_length=MAX_LABELS)]
Line = Annotated[str, StringConstraints(max_length=512), Storable]
# Times go out as OpenAI's do: whole seconds since 1970.
Timestamp = Annotated[datetime, PlainSerializer(_unix_seconds, return_type=int)]


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Deleted(BaseModel):
    """The answer to a DELETE: what is gone."""

    id: str
    object: str
    deleted: bool = True
