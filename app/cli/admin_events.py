"""`tenfold admin event ...`: the feed of all changes of all tenants."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from app.cli.admin_client import PAGE_SIZE, AdminClient, Json, answer, client_of

COLUMNS = ("seq", "created", "type", "tenant_id", "object_id")

event = typer.Typer(name="event", help="Read the feed of all changes.", no_args_is_help=True)


@event.command("list")
def list_(
    context: typer.Context,
    after: Annotated[int, typer.Option(min=0, help="The seq that was read last.")] = 0,
    most: Annotated[
        int | None, typer.Option("--limit", min=1, help="So many at most.", show_default="all")
    ] = None,
    as_json: Json = False,
) -> None:
    """List what changed, in the order of commits; --json has what was shown after each change."""
    rows = list(islice(_events(client_of(context), after), most))
    answer(rows, COLUMNS, as_json=as_json)


def _events(client: AdminClient, after: int) -> Iterator[dict[str, Any]]:
    while True:
        page = client.call("GET", "/events", params={"after": after, "limit": PAGE_SIZE})
        yield from page["data"]
        if not page["has_more"]:
            return
        after = page["next"]
