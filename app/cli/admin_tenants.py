"""`tenfold admin tenant ...`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.cli.admin_client import (
    IfMatch,
    Json,
    Labels,
    NoLabels,
    Yes,
    client_of,
    confirm,
    fail,
    labels_of,
    labels_to_set,
    meant_for,
    path_of,
    refuse_both,
    show,
    show_json,
)

COLUMNS = ("id", "slug", "external_id", "limits", "status")
DETAILS = (*COLUMNS, "allowed_bases", "data_policy", "metadata", "etag")

ExternalId = Annotated[str | None, typer.Option(help="Your own id of this customer.")]
Base = Annotated[
    list[str] | None,
    typer.Option(help="A base model that may be called without an adapter; repeatable."),
]
StoreDays = Annotated[
    int | None,
    typer.Option(min=0, help="Days for which prompts may be kept; 0: they never are."),
]

tenant = typer.Typer(
    name="tenant", help="Create, change, suspend and delete tenants.", no_args_is_help=True
)


@tenant.command("create")
def create(
    context: typer.Context,
    slug: str,
    external_id: ExternalId = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests in flight at once.")
    ] = None,
    queue_depth: Annotated[int | None, typer.Option(min=1, help="Requests that may wait.")] = None,
    plan: Annotated[str | None, typer.Option(help="The plan that it is on.")] = None,
    base: Base = None,
    store_prompts_days: StoreDays = None,
    metadata: Labels = None,
    as_json: Json = False,
) -> None:
    """Create a tenant."""
    given = {"concurrency": concurrency, "queue_depth": queue_depth}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    body: dict[str, Any] = {"slug": slug, "external_id": external_id, "limits": limits}
    if plan is not None:
        body["plan"] = plan
    if metadata:
        body["metadata"] = labels_of(metadata)
    if base:
        body["allowed_bases"] = base
    if store_prompts_days is not None:
        body["data_policy"] = _policy(store_prompts_days)
    created = client_of(context).call("POST", "/tenants", json=body)
    show_json(created) if as_json else show([created], COLUMNS)


@tenant.command("list")
def list_(context: typer.Context, as_json: Json = False) -> None:
    """List all tenants."""
    rows = list(client_of(context).list_all("/tenants"))
    show_json(rows) if as_json else show(rows, COLUMNS)


@tenant.command("show")
def show_one(context: typer.Context, tenant: str, as_json: Json = False) -> None:
    """Show one tenant."""
    found = client_of(context).call("GET", path_of("tenants", tenant))
    show_json(found) if as_json else show([found], DETAILS)


@tenant.command("set")
def change(
    context: typer.Context,
    tenant: str,
    external_id: ExternalId = None,
    no_external_id: Annotated[
        bool, typer.Option("--no-external-id", help="It has none any more.")
    ] = False,
    base: Base = None,
    all_bases: Annotated[bool, typer.Option("--all-bases", help="Any base may be called.")] = False,
    no_bases: Annotated[bool, typer.Option("--no-bases", help="No base may be called.")] = False,
    store_prompts_days: StoreDays = None,
    metadata: Labels = None,
    no_metadata: NoLabels = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Change what is given, and leave the rest. Labels are one whole: give all, or none."""
    refuse_both(external_id is not None, no_external_id)
    refuse_both(bool(base), all_bases, no_bases)
    body: dict[str, Any] = labels_to_set(metadata, none=no_metadata)
    if external_id is not None or no_external_id:
        body["external_id"] = None if no_external_id else external_id
    if base or all_bases or no_bases:
        body["allowed_bases"] = None if all_bases else [] if no_bases else base
    if store_prompts_days is not None:
        body["data_policy"] = _policy(store_prompts_days)
    if not body:
        fail("nothing to change: see --help")
    changed = client_of(context).call(
        "PATCH", path_of("tenants", tenant), json=body, headers=meant_for(if_match)
    )
    show_json(changed) if as_json else show([changed], DETAILS)


@tenant.command("suspend")
def suspend(
    context: typer.Context, tenant: str, if_match: IfMatch = None, as_json: Json = False
) -> None:
    """Refuse a tenant's new requests; those that run finish."""
    suspended = client_of(context).call(
        "POST", path_of("tenants", tenant, "suspend"), headers=meant_for(if_match)
    )
    show_json(suspended) if as_json else show([suspended], COLUMNS)


@tenant.command("resume")
def resume(
    context: typer.Context, tenant: str, if_match: IfMatch = None, as_json: Json = False
) -> None:
    """Take a suspended tenant's requests again."""
    resumed = client_of(context).call(
        "POST", path_of("tenants", tenant, "resume"), headers=meant_for(if_match)
    )
    show_json(resumed) if as_json else show([resumed], COLUMNS)


@tenant.command("delete")
def delete(
    context: typer.Context,
    tenant: str,
    yes: Yes = False,
    erase: Annotated[
        bool, typer.Option("--erase", help="Do not leave running requests their adapters' bytes.")
    ] = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Delete a tenant with its keys and adapters. The ledger and the audit log stay."""
    confirm(f"Delete {tenant} with all its keys and adapters?", yes=yes)
    query = {"erase": "true"} if erase else {}
    deleted = client_of(context).call(
        "DELETE", path_of("tenants", tenant), params=query, headers=meant_for(if_match)
    )
    show_json(deleted) if as_json else show([deleted], ("id", "deleted", "erased"))


def _policy(days: int) -> dict[str, object]:
    return {"store_prompts": days > 0, "retention_days": days or None}
