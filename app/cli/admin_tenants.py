"""`tenfold admin tenant ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.admin_client import Json, client_of, show, show_json

COLUMNS = ("id", "slug", "external_id", "limits")

tenant = typer.Typer(name="tenant", help="Create, list and delete tenants.", no_args_is_help=True)


@tenant.command("create")
def create(
    context: typer.Context,
    slug: str,
    external_id: Annotated[str | None, typer.Option(help="Your own id of this customer.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests in flight at once.")
    ] = None,
    queue_depth: Annotated[int | None, typer.Option(min=1, help="Requests that may wait.")] = None,
    as_json: Json = False,
) -> None:
    """Create a tenant."""
    limits = {"concurrency": concurrency, "queue_depth": queue_depth}
    body = {"slug": slug, "external_id": external_id, "limits": limits}
    created = client_of(context).call("POST", "/tenants", json=body)
    show_json(created) if as_json else show([created], COLUMNS)


@tenant.command("list")
def list_(context: typer.Context, as_json: Json = False) -> None:
    """List all tenants."""
    rows = list(client_of(context).list_all("/tenants"))
    show_json(rows) if as_json else show(rows, COLUMNS)


@tenant.command("delete")
def delete(
    context: typer.Context,
    tenant: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a tenant with its keys and adapters."""
    if not yes:
        typer.confirm(f"Delete {tenant} with all its keys and adapters?", abort=True, err=True)
    deleted = client_of(context).call("DELETE", f"/tenants/{tenant}")
    show_json(deleted) if as_json else show([deleted], ("id", "deleted"))
