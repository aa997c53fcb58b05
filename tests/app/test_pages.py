"""A page is what follows the cursor, in the order that was asked for, and one row more."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.dialects import postgresql

from app.pages import Order, PageQuery
from app.tables import Plan


def sql(page: PageQuery) -> str:
    query = page.narrow(select(Plan.id), Plan.id)
    compiled = query.compile(
        dialect=postgresql.dialect(),  # type: ignore[no-untyped-call]  # SQLAlchemy's
        compile_kwargs={"literal_binds": True},
    )
    return " ".join(str(compiled).split())


@pytest.mark.parametrize(("order", "sign", "word"), [("asc", ">", "ASC"), ("desc", "<", "DESC")])
def test_a_page_is_what_follows_the_cursor_in_its_order(order: Order, sign: str, word: str) -> None:
    assert sql(PageQuery("pln_1", 20, order)) == (
        f"SELECT plans.id FROM plans WHERE plans.id {sign} 'pln_1'"
        f" ORDER BY plans.id {word} LIMIT 21"
    )
    assert "WHERE" not in sql(PageQuery(None, 20, order))
