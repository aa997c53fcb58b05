"""Etags: a change may say which state it is meant for (`If-Match`), and is refused for another.

Knows nothing of single objects. Invariants: an etag is a function of what the API shows of an
object, in every process the same, so that two states which look alike have the same one; whoever
checks it has the object locked, so that what is refused and what is changed are one state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from fastapi import Header
from pydantic import BaseModel, computed_field

from app.errors import PreconditionFailedError

NUM_DIGITS = 32

IfMatch = Annotated[str | None, Header(max_length=256)]


class Tagged(BaseModel):
    """What is shown of an object that has an etag: the hash of all the rest that is shown.

    `stateless` names fields that say nothing of its state: how far it has come, what only this
    answer holds. Nobody is refused because of them.
    """

    stateless: ClassVar[frozenset[str]] = frozenset()

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated properties
    @property
    def etag(self) -> str:
        return etag_of(self.model_dump(mode="json", exclude={"etag", *self.stateless}))


def etag_of(shown: Mapping[str, Any]) -> str:
    """The etag of an object, from what is shown of it, as JSON values."""
    text = json.dumps(shown, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:NUM_DIGITS]


def check_etag(current: str, if_match: str | None) -> None:
    """Raises PreconditionFailedError (`etag_mismatch`) where `if_match` names no state that is
    `current`."""
    if if_match is None or if_match.strip() == "*":
        return
    wanted = {part.strip().removeprefix("W/").strip('"') for part in if_match.split(",")}
    if current not in wanted:
        raise PreconditionFailedError(
            "The object has changed since you read it. Read it again.",
            code="etag_mismatch",
            details={"etag": current},
        )
