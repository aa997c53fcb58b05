"""`tenfold admin key ...`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from app.cli.admin_client import (
    IfMatch,
    Json,
    Labels,
    Yes,
    client_of,
    confirm,
    labels_of,
    meant_for,
    path_of,
    show,
    show_json,
    stderr,
)

COLUMNS = (
    "id",
    "name",
    "scopes",
    "allowed_models",
    "last4",
    "expires_at",
    "disabled_at",
    "replaced_by",
)
SCOPES = ("inference", "adapters:write", "keys:write", "usage:read")
DAY_S = 86400
HOUR_S = 3600

key = typer.Typer(name="key", help="Make, list, rotate and disable API keys.", no_args_is_help=True)


@key.command("create")
def create(
    context: typer.Context,
    tenant: str,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(SCOPES)}; repeatable.", show_default=SCOPES[0]),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="An adapter's name, or a base's id, that it may call; repeatable."),
    ] = None,
    expires_in_days: Annotated[
        int | None, typer.Option(min=1, help="When it ends by itself.", show_default="never")
    ] = None,
    metadata: Labels = None,
    as_json: Json = False,
) -> None:
    """Make a key for a tenant. Its secret is shown this once."""
    body: dict[str, object] = {"name": name, "scopes": scope or [SCOPES[0]]}
    if model:
        body["allowed_models"] = model
    if metadata:
        body["metadata"] = labels_of(metadata)
    if expires_in_days is not None:
        body["expires_at"] = int(time.time()) + expires_in_days * DAY_S
    _show_secret(
        client_of(context).call("POST", path_of("tenants", tenant, "keys"), json=body),
        as_json=as_json,
    )


@key.command("list")
def list_(context: typer.Context, tenant: str, as_json: Json = False) -> None:
    """List a tenant's keys, without their secrets."""
    rows = list(client_of(context).list_all(path_of("tenants", tenant, "keys")))
    show_json(rows) if as_json else show(rows, COLUMNS)


@key.command("show")
def show_one(context: typer.Context, tenant: str, key_id: str, as_json: Json = False) -> None:
    """Show one key, without its secret."""
    found = client_of(context).call("GET", path_of("tenants", tenant, "keys", key_id))
    show_json(found) if as_json else show([found], COLUMNS)


@key.command("rotate")
def rotate(
    context: typer.Context,
    tenant: str,
    key_id: str,
    overlap_hours: Annotated[
        float, typer.Option(min=0, help="How long the old key still works.")
    ] = 24.0,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Replace a key by a new one that may do the same. Its secret is shown this once."""
    body = {"overlap_s": int(overlap_hours * HOUR_S)}
    path = path_of("tenants", tenant, "keys", key_id, "rotate")
    rotated = client_of(context).call("POST", path, json=body, headers=meant_for(if_match))
    _show_secret(rotated, as_json=as_json)


@key.command("disable")
def disable(
    context: typer.Context,
    tenant: str,
    key_id: str,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Refuse a key from now on."""
    path = path_of("tenants", tenant, "keys", key_id, "disable")
    disabled = client_of(context).call("POST", path, headers=meant_for(if_match))
    show_json(disabled) if as_json else show([disabled], COLUMNS)


@key.command("delete")
def delete(
    context: typer.Context,
    tenant: str,
    key_id: str,
    yes: Yes = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Delete a key."""
    confirm(f"Delete the key {key_id} of {tenant}?", yes=yes)
    path = path_of("tenants", tenant, "keys", key_id)
    deleted = client_of(context).call("DELETE", path, headers=meant_for(if_match))
    show_json(deleted) if as_json else show([deleted], ("id", "deleted"))


def _show_secret(created: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        show_json(created)
        return
    show([created], ("id", "scopes", "secret"))
    stderr.print("The secret is not shown again.")
