"""`tenfold admin plan ...`, `tenfold admin limits ...` and `tenfold admin explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from app.cli.admin_client import IfMatch, Json, client_of, fail, meant_for, show, show_json

COLUMNS = ("id", "name", "limits", "weight", "reserved_share", "allows_priority")
IN_FORCE = ("kind", "limit", "mode", "scope", "source")
CHECKS = ("kind", "scope", "mode", "limit", "used", "requested", "outcome", "source")
DRY_RUN_PREFIX = "dry_run."
NO_LIMIT = "none"

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
    priority: Priority = None,
    as_json: Json = False,
) -> None:
    """Make a plan."""
    body = {"name": name, **_terms(limit, weight, priority)}
    _show_plan(client_of(context).call("POST", "/plans", json=body), as_json=as_json)


@plan.command("set")
def set_plan(
    context: typer.Context,
    name: str,
    limit: LimitOptions = None,
    weight: Weight = None,
    priority: Priority = None,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Replace all that a plan says, for its tenants at once."""
    body = _terms(limit, weight, priority)
    headers = meant_for(if_match)
    put = client_of(context).call("PUT", f"/plans/{name}", json=body, headers=headers)
    _show_plan(put, as_json=as_json)


@plan.command("list")
def list_(context: typer.Context, as_json: Json = False) -> None:
    """List all plans."""
    rows = list(client_of(context).list_all("/plans"))
    show_json(rows) if as_json else show(rows, COLUMNS)


@plan.command("delete")
def delete(
    context: typer.Context, name: str, if_match: IfMatch = None, as_json: Json = False
) -> None:
    """Delete a plan that no tenant is on."""
    deleted = client_of(context).call("DELETE", f"/plans/{name}", headers=meant_for(if_match))
    show_json(deleted) if as_json else show([deleted], ("id", "deleted"))


@plan.command("assign")
def assign(
    context: typer.Context,
    tenant: str,
    name: Annotated[str, typer.Argument(help="A plan, or none.")],
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Put a tenant on a plan."""
    body = {"plan": None if name == NO_LIMIT else name}
    headers = meant_for(if_match)
    shown = client_of(context).call("PUT", f"/tenants/{tenant}/plan", json=body, headers=headers)
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
    priority: Priority = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what a tenant's would be.")
    ] = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Replace the limits that a tenant, a key or an adapter has of its own."""
    body = _terms(limit, weight, priority)
    if key is not None or adapter is not None:
        if dry_run or weight is not None or priority is not None:
            fail("--dry-run, --weight and --priority are of tenants")
        body = body["limits"]
    query = {"dry_run": "1"} if dry_run else {}
    path = _path(tenant, key, adapter)
    shown = client_of(context).call(
        "PUT", path, params=query, json=body, headers=meant_for(if_match)
    )
    show_json(shown) if as_json else show(shown["in_force"], IN_FORCE)


def explain(context: typer.Context, request_id: str, as_json: Json = False) -> None:
    """Say why a request was admitted or refused."""
    decision = client_of(context).call("GET", f"/explain/{request_id}")
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
        return f"/tenants/{tenant}/keys/{key}/limits"
    if adapter is not None:
        return f"/tenants/{tenant}/adapters/{adapter}/limits"
    return f"/tenants/{tenant}/limits"


def _terms(
    options: Sequence[str] | None, weight: float | None, priority: bool | None
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
    return {"limits": found, "weight": weight, "allows_priority": priority}
