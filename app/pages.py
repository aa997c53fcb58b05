"""Lists, one page at a time: `?after=<last id>&limit=20`.

Knows nothing of what is listed. Invariant: an id is a cursor (`app.ids`), so that a page neither
repeats nor skips a row that was there all along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, Protocol, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel

MAX_PAGE = 100


class Listed(Protocol):
    @property
    def id(self) -> str: ...


Row = TypeVar("Row", bound=Listed)
Item = TypeVar("Item", bound=BaseModel)


class Page(BaseModel, Generic[Item]):
    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool
    first_id: str | None
    last_id: str | None


@dataclass(frozen=True, slots=True)
class PageQuery:
    after: str | None
    limit: int

    @property
    def num_rows(self) -> int:
        """How many rows to fetch: one more than shown says whether there are more."""
        return self.limit + 1

    def page(self, rows: Sequence[Row], present: Callable[[Row], Item]) -> Page[Item]:
        shown = rows[: self.limit]
        return Page(
            data=[present(row) for row in shown],
            has_more=len(rows) > self.limit,
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
        )


def page_query(
    after: Annotated[str | None, Query(pattern=r"^[a-z]{3}_[0-9a-z]{26}$")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
) -> PageQuery:
    return PageQuery(after, limit)


Paging = Annotated[PageQuery, Depends(page_query)]
