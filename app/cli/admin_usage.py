"""`tenfold admin usage ...` and `tenfold admin price ...`."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from app.cli.admin_client import (
    IfMatch,
    Json,
    Yes,
    answer,
    client_of,
    confirm,
    describe_error,
    fail,
    meant_for,
    path_of,
    show,
    show_json,
)

DAY_S = 86400
USAGE_COLUMNS = (
    "tenant_id",
    "api_key_id",
    "adapter_id",
    "adapter_version_id",
    "base_model",
    "service_tier",
)
COUNT_COLUMNS = (
    "num_model_requests",
    "input_tokens",
    "input_cached_tokens",
    "output_tokens",
    "amounts",
)
PRICE_COLUMNS = (
    "id",
    "tenant_id",
    "base_model",
    "currency",
    "input",
    "cached",
    "output",
    "effective_at",
)

usage = typer.Typer(
    name="usage", help="What was used, and whether it adds up.", no_args_is_help=True
)
price = typer.Typer(name="price", help="Keep the price book.", no_args_is_help=True)

Days = Annotated[int, typer.Option(min=1, help="So many days.")]
Until = Annotated[
    int | None, typer.Option(min=0, help="Up to then, in seconds since 1970.", show_default="now")
]
Tenant = Annotated[
    str | None, typer.Option(help="Of one tenant, by id or slug.", show_default="all")
]


@usage.command("show")
def show_usage(
    context: typer.Context,
    days: Days = 7,
    until: Until = None,
    bucket: Annotated[str, typer.Option(help="1m, 1h or 1d.")] = "1d",
    by: Annotated[
        list[str] | None,
        typer.Option(help="tenant, key, adapter, version, base or tier; repeatable."),
    ] = None,
    tenant: Tenant = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print a table for other programs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what was used, by bucket of time and group."""
    query = _span(days, until, tenant) | {"bucket_width": bucket, "group_by": by or ["tenant"]}
    client = client_of(context)
    if as_csv:
        response = client.send("GET", "/usage", params={**query, "format": "csv"})
        if not response.is_success:
            fail(describe_error(response))
        typer.echo(response.text, nl=False)
        return
    buckets: list[dict[str, Any]] = []
    page = client.call("GET", "/usage", params=query)
    buckets += page["data"]
    while page["has_more"]:
        page = client.call("GET", "/usage", params={**query, "page": page["next_page"]})
        buckets += page["data"]
    if as_json:
        show_json(buckets)
        return
    rows = [
        {**result, "start": _minute(each["start_time"]), "amounts": _money(result["amounts"])}
        for each in buckets
        for result in each["results"]
    ]
    grouped = [name for name in USAGE_COLUMNS if any(row[name] is not None for row in rows)]
    show(rows, ("start", *grouped, *COUNT_COLUMNS))


@usage.command("reconcile")
def reconcile(
    context: typer.Context,
    days: Days = 1,
    until: Until = None,
    tenant: Tenant = None,
    most: Annotated[
        int | None, typer.Option("--limit", min=1, help="Show so many differences at most.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare acceptances, ledger, roll-ups and exports; exit status 1 where they differ."""
    query = _span(days, until, tenant) | ({} if most is None else {"limit": most})
    found = client_of(context).call("GET", "/reconcile", params=query)
    if as_json:
        show_json(found)
    else:
        sides = [{"side": side, **totals} for side, totals in found["totals"].items()]
        show(sides, ("side", "num_requests", "input_tokens", "output_tokens"))
        show([found["pending"]], tuple(found["pending"]))
        if found["differences"]:
            columns = ("kind", "tenant_id", "request_id", "hour", "expected", "found")
            show(found["differences"], columns)
    if not found["is_balanced"]:
        raise typer.Exit(1)


@price.command("set")
def set_price(
    context: typer.Context,
    currency: Annotated[str, typer.Argument(help="Three letters, for instance usd.")],
    input: Annotated[str, typer.Option(help="Of a million prompt tokens.")],
    output: Annotated[str, typer.Option(help="Of a million generated tokens.")],
    cached: Annotated[
        str | None, typer.Option(help="Of a million cached prompt tokens.", show_default="input")
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="A base's id.", show_default="the one that is served")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="For one tenant alone.", show_default="everybody")
    ] = None,
    effective_at: Annotated[
        int | None,
        typer.Option(
            help="Seconds since 1970, a whole hour.", show_default="the first that has no price yet"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Set a price from an hour on."""
    asked = {
        "currency": currency,
        "input": input,
        "output": output,
        "cached": cached,
        "base_model": base_model,
        "tenant": tenant,
        "effective_at": effective_at,
    }
    body = {name: value for name, value in asked.items() if value is not None}
    created = client_of(context).call("POST", "/prices", json=body)
    show_json(created) if as_json else show([created], PRICE_COLUMNS)


@price.command("list")
def list_(context: typer.Context, as_json: Json = False) -> None:
    """List all prices."""
    rows = list(client_of(context).list_all("/prices"))
    show_json(rows) if as_json else show(rows, PRICE_COLUMNS)


@price.command("show")
def show_one(context: typer.Context, price_id: str, as_json: Json = False) -> None:
    """Show one price."""
    found = client_of(context).call("GET", path_of("prices", price_id))
    answer(found, (*PRICE_COLUMNS, "etag"), as_json=as_json)


@price.command("delete")
def delete(
    context: typer.Context,
    price_id: str,
    yes: Yes = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Take back a price that is not in force yet."""
    confirm(f"Take back the price {price_id}?", yes=yes)
    path = path_of("prices", price_id)
    deleted = client_of(context).call("DELETE", path, headers=meant_for(if_match))
    answer(deleted, ("id", "deleted"), as_json=as_json)


def _span(days: int, until: int | None, tenant: str | None) -> dict[str, Any]:
    """So many days up to `until`, which is now where it is not given."""
    end = int(time.time()) if until is None else until
    query: dict[str, Any] = {"start_time": max(0, end - days * DAY_S)}
    query |= {} if until is None else {"end_time": until}
    return query if tenant is None else query | {"tenant": tenant}


def _minute(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _money(amounts: list[dict[str, str]]) -> str:
    return ", ".join(f"{each['value']} {each['currency']}" for each in amounts) or "-"
