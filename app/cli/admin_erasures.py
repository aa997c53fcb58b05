"""`tenfold admin erasure ...`: records of bytes of which nothing is left."""

from __future__ import annotations

import typer

from app.cli.admin_client import (
    Json,
    TenantOption,
    answer,
    client_of,
    fail,
    path_of,
    show,
    show_json,
)

COLUMNS = ("id", "digest", "version_ids", "erased")
ENGINES = ("engine_id", "num_aborted")

erasure = typer.Typer(name="erasure", help="Look up what was erased.", no_args_is_help=True)


@erasure.command("list")
def list_(context: typer.Context, tenant: TenantOption, as_json: Json = False) -> None:
    """List what was erased of a tenant."""
    rows = list(client_of(context).list_all(path_of("tenants", tenant, "erasures")))
    answer(rows, COLUMNS, as_json=as_json)


@erasure.command("show")
def show_one(
    context: typer.Context, erasure_id: str, tenant: TenantOption, as_json: Json = False
) -> None:
    """Show one erasure, with each engine's word."""
    rows = client_of(context).list_all(path_of("tenants", tenant, "erasures"))
    found = next((row for row in rows if row["id"] == erasure_id), None)
    if found is None:
        fail(f"{tenant} has no erasure {erasure_id}")
    if as_json:
        show_json(found)
    else:
        show([found], COLUMNS)
        show(found["engines"], ENGINES)
