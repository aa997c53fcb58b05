"""`tenfold admin plan ...`, `tenfold admin limits ...` and `tenfold admin explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from app.cli.admin_client import (
    IfMatch,
    Json,
    Yes,
    adapter_path,
    answer,
    client_of,
    confirm,
    fail,
    meant_for,
    path_of,
    show,
    show_json,
)

COLUMNS = ("id", "name", "limits", "weight", "reserved_share", "allows_priority")
DETAILS = (*COLUMNS, "etag")
IN_FORCE = ("kind", "limit", "mode", "scope", "source")
CHECKS = ("kind", "scope", "mode", "limit", "used", "requested", "outcome", "source")
DRY_RUN_PREFIX = "dry_run."
NO_LIMIT = "none"

TERMS = ("weight", "reserved_share", "allows_priority")

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what a tenant's would be.")]
LimitOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help="<limit>=<number>, or =none; dry_run.<limit>=<number> only records. Repeatable.",
    ),
]
Weight = Annotated[float | None, typer.Option(help="Its part where engines are few; 1 is usual.")]
Priority = Annotated[
    bool | None, typer.Option("--priority/--no-priority", help="May it ask for that tier?")
]
ReservedShare = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="The part of all service that it gets at least: 0 to 1."),
]
Key = Annotated[str | None, typer.Option(help="Of this key of the tenant.")]
Adapter = Annotated[str | None, typer.Option(help="Of this adapter of the tenant.")]

plan = typer.Typer(name="plan", help="Named sets of limits.", no_args_is_help=True)
limits = typer.Typer(
    name="limits", help="Limits of tenants, keys and adapters.", no_args_is_help=True
)


@plan.command("create")
def create(
    context: typer.Context,
    name: str,
    limit: LimitOptions = None,
    weight: Weight = None,
    reserved_share: ReservedShare = None,
    priority: Priority = None,
    as_json: Json = False,
) -> None:
    """Make a plan."""
    body = {"name": name, **_terms(limit, weight, reserved_share, priority)}
    _show_plan(client_of(context).call("POST", "/plans", json=body), as_json=as_json)


@plan.command("set")
def set_plan(
    context: typer.Context,
    name: str,
    limit: LimitOptions = None,
    weight: Weight = None,
    reserved_share: ReservedShare = None,
    priority: Priority = None,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Replace all that a plan says, for its tenants at once. What is not given is not said."""
    body = _terms(limit, weight, reserved_share, priority)
    headers = meant_for(if_match)
    put = client_of(context).call("PUT", path_of("plans", name), json=body, headers=headers)
    _show_plan(put, as_json=as_json)


@plan.command("list")
def list_(context: typer.Context, as_json: Json = False) -> None:
    """List all plans."""
    rows = list(client_of(context).list_all("/plans"))
    show_json(rows) if as_json else show(rows, COLUMNS)


@plan.command("show")
def show_one(context: typer.Context, name: str, as_json: Json = False) -> None:
    """Show one plan."""
    found = client_of(context).call("GET", path_of("plans", name))
    answer(found, DETAILS, as_json=as_json)


@plan.command("delete")
def delete(
    context: typer.Context,
    name: str,
    yes: Yes = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Delete a plan that no tenant is on."""
    confirm(f"Delete the plan {name}?", yes=yes)
    deleted = client_of(context).call("DELETE", path_of("plans", name), headers=meant_for(if_match))
    show_json(deleted) if as_json else show([deleted], ("id", "deleted"))


@plan.command("assign")
def assign(
    context: typer.Context,
    tenant: str,
    name: Annotated[str, typer.Argument(help="A plan, or none.")],
    dry_run: DryRun = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Put a tenant on a plan."""
    body = {"plan": None if name == NO_LIMIT else name}
    query = {"dry_run": True} if dry_run else {}
    shown = client_of(context).call(
        "PUT",
        path_of("tenants", tenant, "plan"),
        params=query,
        json=body,
        headers=meant_for(if_match),
    )
    show_json(shown) if as_json else show(shown["in_force"], IN_FORCE)


@limits.command("show")
def show_limits(
    context: typer.Context,
    tenant: str,
    key: Key = None,
    adapter: Adapter = None,
    as_json: Json = False,
) -> None:
    """What is in force, and who set it."""
    shown = client_of(context).call("GET", _path(tenant, key, adapter))
    show_json(shown) if as_json else show(shown["in_force"], IN_FORCE)


@limits.command("set")
def set_limits(
    context: typer.Context,
    tenant: str,
    limit: LimitOptions = None,
    key: Key = None,
    adapter: Adapter = None,
    weight: Weight = None,
    reserved_share: ReservedShare = None,
    priority: Priority = None,
    dry_run: DryRun = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Replace all that a tenant, key or adapter has of its own. What is not given is not said."""
    body = _terms(limit, weight, reserved_share, priority)
    if key is not None or adapter is not None:
        if dry_run or any(body[term] is not None for term in TERMS):
            fail("--dry-run, --weight, --reserved-share and --priority are of tenants")
        body = body["limits"]
    query = {"dry_run": True} if dry_run else {}
    path = _path(tenant, key, adapter)
    shown = client_of(context).call(
        "PUT", path, params=query, json=body, headers=meant_for(if_match)
    )
    show_json(shown) if as_json else show(shown["in_force"], IN_FORCE)


def explain(context: typer.Context, request_id: str, as_json: Json = False) -> None:
    """Say why a request was admitted or refused."""
    decision = client_of(context).call("GET", path_of("explain", request_id))
    if as_json:
        show_json(decision)
    else:
        show([decision], ("id", "tenant_id", "key_id", "model", "outcome"))
        show(decision["checks"], CHECKS)


def _show_plan(shown: dict[str, Any], *, as_json: bool) -> None:
    show_json(shown) if as_json else show([shown], COLUMNS)


def _path(tenant: str, key: str | None, adapter: str | None) -> str:
    if key is not None and adapter is not None:
        fail("a key's limits or an adapter's, not both")
    if key is not None:
        return path_of("tenants", tenant, "keys", key, "limits")
    if adapter is not None:
        return adapter_path(tenant, adapter, "limits")
    return path_of("tenants", tenant, "limits")


def _terms(
    options: Sequence[str] | None,
    weight: float | None,
    reserved_share: float | None,
    priority: bool | None,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in options or ():
        name, _, text = option.partition("=")
        if text != NO_LIMIT and not (text.isascii() and text.isdigit()):
            fail(f"{option}: expected <limit>=<number> or <limit>={NO_LIMIT}")
        value = None if text == NO_LIMIT else int(text)
        if name.startswith(DRY_RUN_PREFIX):
            found.setdefault("dry_run", {})[name.removeprefix(DRY_RUN_PREFIX)] = value
        else:
            found[name] = value
    given = dict(zip(TERMS, (weight, reserved_share, priority), strict=True))
    return {"limits": found, **given}
