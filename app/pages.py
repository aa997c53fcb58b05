"""Lists, one page at a time: `?after=<last id>&limit=20&order=desc`.

Knows nothing of what is listed. Invariant: an id is a cursor (`app.ids`) in either order, so that a
page neither repeats nor skips a row that was there all along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel
from sqlalchemy import Select, SQLColumnExpression

MAX_PAGE = 100

Order = Literal["asc", "desc"]


class Listed(Protocol):
    @property
    def id(self) -> str: ...


Row = TypeVar("Row", bound=Listed)
Item = TypeVar("Item", bound=BaseModel)
Rows = TypeVar("Rows", bound=Select[Any])


class Page(BaseModel, Generic[Item]):
    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool
    first_id: str | None
    last_id: str | None


@dataclass(frozen=True, slots=True)
class PageQuery:
    """`order`: by the time of creation, which ids begin with."""

    after: str | None
    limit: int
    order: Order = "asc"

    @property
    def num_rows(self) -> int:
        """How many rows to fetch: one more than shown says whether there are more."""
        return self.limit + 1

    def narrow(
        self, query: Rows, cursor: SQLColumnExpression[Any], after: object | None = None
    ) -> Rows:
        """The rows of `query` on this page, and one more, in the order of the column `cursor`.

        after: what `cursor` is in the row with the id `after`, where it is not the id itself.
        """
        is_ascending = self.order == "asc"
        if self.after is not None:
            last = self.after if after is None else after
            query = query.where(cursor > last if is_ascending else cursor < last)
        return query.order_by(cursor.asc() if is_ascending else cursor.desc()).limit(self.num_rows)

    def page(self, rows: Sequence[Row], present: Callable[[Row], Item]) -> Page[Item]:
        shown = rows[: self.limit]
        return Page(
            data=[present(row) for row in shown],
            has_more=len(rows) > self.limit,
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
        )


After = Annotated[str | None, Query(pattern=r"^[a-z]{3}_[0-9a-z]{26}$")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


def first_to_last(after: After = None, limit: Limit = 20, order: Order = "asc") -> PageQuery:
    return PageQuery(after, limit, order)


def last_to_first(after: After = None, limit: Limit = 20, order: Order = "desc") -> PageQuery:
    return PageQuery(after, limit, order)


Paging = Annotated[PageQuery, Depends(first_to_last)]
LatestFirst = Annotated[PageQuery, Depends(last_to_first)]
