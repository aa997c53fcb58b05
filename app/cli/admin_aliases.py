"""`tenfold admin alias ...`: what a name of an adapter means, and meant before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from app.cli.admin_client import (
    AdapterName,
    AdminClient,
    IfMatch,
    Json,
    TenantOption,
    Yes,
    adapter_path,
    answer,
    client_of,
    confirm,
    fail,
    meant_for,
    patience,
    show,
    show_json,
)

COLUMNS = ("alias", "targets", "sticky_by", "shadow", "etag")
CHANGES = ("id", "targets", "sticky_by", "actor", "restores", "changed")
SHADOWED = ("version_id", "num", "errors", "identical", "agreement")

AliasName = Annotated[str, typer.Argument(metavar="ALIAS", help="For instance prod.")]

alias = typer.Typer(name="alias", help="Point aliases at versions, and back.", no_args_is_help=True)


@alias.command("list")
def list_(
    context: typer.Context, name: AdapterName, tenant: TenantOption, as_json: Json = False
) -> None:
    """List an adapter's aliases."""
    client = client_of(context)
    adapter = client.call("GET", adapter_path(tenant, name))
    found = [
        client.call("GET", adapter_path(tenant, name, "aliases", alias))
        for alias in adapter["aliases"]
    ]
    show_json(found) if as_json else show([row_of(each) for each in found], COLUMNS)


@alias.command("show")
def show_one(
    context: typer.Context,
    name: AdapterName,
    alias: AliasName,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """Show where an alias points."""
    found = client_of(context).call("GET", adapter_path(tenant, name, "aliases", alias))
    _show_alias(found, as_json=as_json)


@alias.command("set")
def set_alias(
    context: typer.Context,
    name: AdapterName,
    alias: AliasName,
    versions: Annotated[
        list[str],
        typer.Argument(metavar="VERSION...", help="v4, or several with weights: v4=95 v5=5."),
    ],
    tenant: TenantOption,
    sticky_by: Annotated[
        str | None,
        typer.Option(
            help="safety_identifier, user, prompt_cache_key or api_key: equal values of it mean "
            "one version."
        ),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(metavar="VERSION=WEIGHT", help="Also runs so many of a hundred, unseen."),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds for engines to load the versions first.")
    ] = 0,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Point an alias at a version, or at several by weight."""
    body: dict[str, Any]
    if len(versions) == 1 and "=" not in versions[0]:
        body = {"version": versions[0]}
    else:
        body = {"targets": [_weighted(each) for each in versions]}
    body |= {} if sticky_by is None else {"sticky_by": sticky_by}
    body |= {} if shadow is None else {"shadow": _weighted(shadow)}
    path = adapter_path(tenant, name, "aliases", alias)
    _show_alias(put_alias(client_of(context), path, body, wait, if_match), as_json=as_json)


@alias.command("history")
def history(
    context: typer.Context,
    name: AdapterName,
    alias: AliasName,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """List where an alias pointed, the latest first."""
    path = adapter_path(tenant, name, "aliases", alias, "history")
    rows = list(client_of(context).list_all(path))
    if as_json:
        show_json(rows)
    else:
        show([row | {"targets": _describe(row["targets"])} for row in rows], CHANGES)


@alias.command("rollback")
def roll_back(
    context: typer.Context,
    name: AdapterName,
    alias: AliasName,
    tenant: TenantOption,
    to: Annotated[
        str | None, typer.Option(help="An entry of its history.", show_default="the one before")
    ] = None,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Point an alias where it pointed before."""
    body = {} if to is None else {"to": to}
    path = adapter_path(tenant, name, "aliases", alias, "rollback")
    moved = client_of(context).call("POST", path, json=body, headers=meant_for(if_match))
    _show_alias(moved, as_json=as_json)


@alias.command("shadow")
def shadow_results(
    context: typer.Context,
    name: AdapterName,
    alias: AliasName,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """How far an alias's answers and its shadow's agreed."""
    path = adapter_path(tenant, name, "aliases", alias, "shadow")
    answer(client_of(context).call("GET", path), SHADOWED, as_json=as_json)


@alias.command("delete")
def delete(
    context: typer.Context,
    name: AdapterName,
    alias: AliasName,
    tenant: TenantOption,
    yes: Yes = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Delete an alias: whoever asks for it finds nothing."""
    confirm(f"Delete the alias {alias} of {name} of {tenant}?", yes=yes)
    path = adapter_path(tenant, name, "aliases", alias)
    deleted = client_of(context).call("DELETE", path, headers=meant_for(if_match))
    answer(deleted, ("id", "deleted"), as_json=as_json)


def put_alias(
    client: AdminClient, path: str, body: Mapping[str, Any], wait: float, if_match: str | None
) -> dict[str, Any]:
    """Moves an alias; the server may take `wait` seconds to have engines load it first."""
    return client.call(
        "PUT",
        path,
        json=body,
        params={"wait": wait},
        headers=meant_for(if_match),
        timeout=patience(wait),
    )


def row_of(alias: Mapping[str, Any]) -> dict[str, Any]:
    """An alias as a row of a table of `COLUMNS`."""
    shadow = alias["shadow"]
    targets = _describe(alias["targets"])
    return {**alias, "targets": targets, "shadow": shadow and _describe([shadow])}


def _show_alias(found: Mapping[str, Any], *, as_json: bool) -> None:
    show_json(found) if as_json else show([row_of(found)], COLUMNS)


def _describe(targets: Sequence[Mapping[str, Any]]) -> str:
    named = (each.get("version") or each.get("version_id") for each in targets)
    return ", ".join(f"{name}={each['weight']}" for name, each in zip(named, targets, strict=True))


def _weighted(option: str) -> dict[str, Any]:
    version, _, weight = option.partition("=")
    if not (version and weight.isascii() and weight.isdigit()):
        fail(f"{option}: expected <version>=<weight>, such as v5=10")
    return {"version": version, "weight": int(weight)}
