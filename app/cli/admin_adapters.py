"""`tenfold admin adapter ...`: whole adapters. Pushing and pulling: the files beside."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.cli.admin_aliases import COLUMNS as ALIAS_COLUMNS
from app.cli.admin_aliases import put_alias, row_of
from app.cli.admin_client import (
    AdapterName,
    IfMatch,
    Json,
    Labels,
    NoLabels,
    TenantOption,
    Yes,
    adapter_path,
    answer,
    client_of,
    confirm,
    fail,
    labels_of,
    labels_to_set,
    meant_for,
    path_of,
    show,
    show_json,
)
from app.cli.admin_pull import pull
from app.cli.admin_push import VERSION_COLUMNS, push
from app.cli.admin_versions import DrainSeconds, Erase, deletion_query

COLUMNS = ("id", "name", "base_model", "aliases")
DETAILS = (*COLUMNS, "description", "metadata", "etag")

adapter = typer.Typer(
    name="adapter", help="Push, pull, list and delete adapters.", no_args_is_help=True
)
adapter.command("push")(push)
adapter.command("pull")(pull)


@adapter.command("create")
def create(
    context: typer.Context,
    name: str,
    tenant: TenantOption,
    base_model: Annotated[
        str | None, typer.Option(help="A base's id.", show_default="the one that is served")
    ] = None,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    metadata: Labels = None,
    as_json: Json = False,
) -> None:
    """Make an adapter without any version; `push` and `import create` make one by themselves."""
    body: dict[str, Any] = {"name": name, "metadata": labels_of(metadata or ())}
    given = {"base_model": base_model, "description": description}
    body |= {field: value for field, value in given.items() if value is not None}
    created = client_of(context).call("POST", path_of("tenants", tenant, "adapters"), json=body)
    answer(created, DETAILS, as_json=as_json)


@adapter.command("list")
def list_(context: typer.Context, tenant: TenantOption, as_json: Json = False) -> None:
    """List a tenant's adapters."""
    rows = list(client_of(context).list_all(path_of("tenants", tenant, "adapters")))
    answer(rows, COLUMNS, as_json=as_json)


@adapter.command("show")
def show_one(
    context: typer.Context, name: AdapterName, tenant: TenantOption, as_json: Json = False
) -> None:
    """Show one adapter."""
    answer(client_of(context).call("GET", adapter_path(tenant, name)), DETAILS, as_json=as_json)


@adapter.command("set")
def change(
    context: typer.Context,
    name: AdapterName,
    tenant: TenantOption,
    description: Annotated[
        str | None, typer.Option(help="What it is for; '' takes it away.")
    ] = None,
    metadata: Labels = None,
    no_metadata: NoLabels = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Change what is given, and leave the rest. Labels are one whole: give all, or none."""
    body: dict[str, Any] = labels_to_set(metadata, none=no_metadata)
    if description is not None:
        body["description"] = description or None
    if not body:
        fail("nothing to change: see --help")
    changed = client_of(context).call(
        "PATCH", adapter_path(tenant, name), json=body, headers=meant_for(if_match)
    )
    answer(changed, DETAILS, as_json=as_json)


@adapter.command("versions")
def versions(
    context: typer.Context, name: AdapterName, tenant: TenantOption, as_json: Json = False
) -> None:
    """List an adapter's versions, as `version list` does."""
    rows = list(client_of(context).list_all(adapter_path(tenant, name, "versions")))
    answer(rows, VERSION_COLUMNS, as_json=as_json)


@adapter.command("alias")
def alias(
    context: typer.Context,
    name: AdapterName,
    alias: str,
    version: str,
    tenant: TenantOption,
    wait: Annotated[
        float, typer.Option("--wait", help="Seconds for engines to load the version first.")
    ] = 0,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Point an alias, for instance prod, at a version, for instance v2, as `alias set` does."""
    path = adapter_path(tenant, name, "aliases", alias)
    moved = put_alias(client_of(context), path, {"version": version}, wait, if_match)
    show_json(moved) if as_json else show([row_of(moved)], ALIAS_COLUMNS)


@adapter.command("delete")
def delete(
    context: typer.Context,
    name: AdapterName,
    tenant: TenantOption,
    force: Annotated[
        bool, typer.Option("--force", help="With its aliases and rollouts, too.")
    ] = False,
    drain_s: DrainSeconds = None,
    erase: Erase = False,
    yes: Yes = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Delete an adapter with all its versions. Refused while it has aliases, without --force."""
    confirm(f"Delete {name} of {tenant} with all versions?", yes=yes)
    deleted = client_of(context).call(
        "DELETE",
        adapter_path(tenant, name),
        params=deletion_query(drain_s, erase=erase) | ({"force": True} if force else {}),
        headers=meant_for(if_match),
    )
    answer(deleted, ("id", "deleted"), as_json=as_json)
