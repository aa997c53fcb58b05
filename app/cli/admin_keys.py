"""`tenfold admin key ...`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from app.cli.admin_client import Json, client_of, show, show_json, stderr

COLUMNS = ("id", "name", "scopes", "last4", "expires_at", "disabled_at")
DAY_S = 86400

key = typer.Typer(name="key", help="Make, list and disable API keys.", no_args_is_help=True)


@key.command("create")
def create(
    context: typer.Context,
    tenant: str,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "default",
    scope: Annotated[
        list[str] | None, typer.Option(help="inference (default) or adapters:write; repeatable.")
    ] = None,
    expires_in_days: Annotated[int | None, typer.Option(min=1)] = None,
    as_json: Json = False,
) -> None:
    """Make a key for a tenant. Its secret is shown this once."""
    body: dict[str, object] = {"name": name, "scopes": scope or ["inference"]}
    if expires_in_days is not None:
        body["expires_at"] = int(time.time()) + expires_in_days * DAY_S
    created = client_of(context).call("POST", f"/tenants/{tenant}/keys", json=body)
    if as_json:
        show_json(created)
        return
    show([created], ("id", "scopes", "secret"))
    stderr.print("The secret is not shown again.")


@key.command("list")
def list_(context: typer.Context, tenant: str, as_json: Json = False) -> None:
    """List a tenant's keys, without their secrets."""
    rows = list(client_of(context).list_all(f"/tenants/{tenant}/keys"))
    show_json(rows) if as_json else show(rows, COLUMNS)


@key.command("disable")
def disable(context: typer.Context, tenant: str, key_id: str, as_json: Json = False) -> None:
    """Refuse a key from now on."""
    disabled = client_of(context).call("POST", f"/tenants/{tenant}/keys/{key_id}/disable")
    show_json(disabled) if as_json else show([disabled], COLUMNS)
