"""`tenfold admin audit ...`: read the log of changes, and verify that nothing of it was altered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from app.cli.admin_client import (
    PAGE_SIZE,
    AdminClient,
    Json,
    client_of,
    fail,
    path_of,
    show,
    show_json,
)

COLUMNS = ("seq", "recorded_at", "actor", "action", "target", "request_id")
VERDICT = ("tenant_id", "is_intact", "num_events", "findings")

Chain = Annotated[str, typer.Argument(help="A tenant, or fleet: what concerns no single one.")]

audit = typer.Typer(name="audit", help="Read and verify the audit log.", no_args_is_help=True)


@audit.command("list")
def list_(context: typer.Context, chain: Chain, as_json: Json = False) -> None:
    """List what was changed, oldest first; --json has what was before and after."""
    rows = list(client_of(context).list_all(path_of("audit", chain)))
    show_json(rows) if as_json else show(rows, COLUMNS)


@audit.command("heads")
def heads(context: typer.Context, as_json: Json = False) -> None:
    """List where each chain ends now: what to keep elsewhere, and to verify against later."""
    rows = list(_heads(client_of(context)))
    show_json(rows) if as_json else show(rows, ("tenant_id", "seq", "mac"))


@audit.command("verify")
def verify(
    context: typer.Context,
    chain: Annotated[str | None, typer.Argument(help="One chain; without it, all.")] = None,
    kept: Annotated[
        str | None,
        typer.Option(help="SEQ:MAC of an event that was kept elsewhere; for one chain."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Follow the chains from their first events. Exit status 1 where one was altered."""
    client = client_of(context)
    query = _kept(kept)
    if query and chain is None:
        fail("--kept needs a chain")
    chains = [chain] if chain is not None else [head["tenant_id"] for head in _heads(client)]
    rows = [
        client.call("GET", path_of("audit", each, "verification"), params=query) for each in chains
    ]
    altered = [row for row in rows if not row["is_intact"]]
    if as_json:
        show_json(rows)
    else:
        show(altered or rows, VERDICT)
    if altered:
        fail(f"{len(altered)} of {len(rows)} chains are not as they were recorded")


def _heads(client: AdminClient) -> Iterator[dict[str, Any]]:
    after = None
    while True:
        query = {"limit": PAGE_SIZE} | ({"after": after} if after else {})
        page = client.call("GET", "/audit", params=query)
        yield from page["data"]
        if not page["has_more"]:
            return
        after = page["last_id"]


def _kept(kept: str | None) -> dict[str, str]:
    if kept is None:
        return {}
    seq, _, mac = kept.partition(":")
    if not (seq.isdigit() and mac):
        fail("--kept is SEQ:MAC, as `tenfold admin audit heads` shows them")
    return {"kept_seq": seq, "kept_mac": mac}
