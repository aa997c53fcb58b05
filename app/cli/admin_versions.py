"""`tenfold admin version ...`: an adapter's versions, their states and their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from app.cli.admin_client import (
    AdapterName,
    IfMatch,
    Json,
    TenantOption,
    VersionName,
    Yes,
    adapter_path,
    answer,
    client_of,
    confirm,
    describe_checks,
    describe_error,
    fail,
    meant_for,
    patience,
    report_of,
    show,
    show_json,
    stderr,
)
from app.cli.admin_levers import evaluate, evict, pin, preload, probe, residency
from app.cli.admin_push import (
    VERSION_COLUMNS,
    Folder,
    FolderName,
    Strict,
    files_of,
    send_files,
)

DETAILS = (*VERSION_COLUMNS, "shutdown_date", "etag")
CHECKS = ("severity", "rule", "message")
CHANGES = {
    "activate": "Serve a version that is validated or deprecated.",
    "archive": "Serve a deprecated version no more, and keep its bytes.",
    "restore": "Take back a version that was archived, or deleted while its bytes are there.",
}

DrainSeconds = Annotated[
    int | None, typer.Option(min=0, help="Seconds for which requests that run may go on.")
]
Erase = Annotated[
    bool, typer.Option("--erase", help="Remove the bytes at once, and retain nothing.")
]

version = typer.Typer(
    name="version", help="Versions, their states, and engines that have them.", no_args_is_help=True
)
version.command("evaluate")(evaluate)
version.command("residency")(residency)
version.command("preload")(preload)
version.command("pin")(pin)
version.command("evict")(evict)
version.command("probe")(probe)


@version.command("list")
def list_(
    context: typer.Context, name: AdapterName, tenant: TenantOption, as_json: Json = False
) -> None:
    """List an adapter's versions."""
    rows = list(client_of(context).list_all(adapter_path(tenant, name, "versions")))
    answer(rows, VERSION_COLUMNS, as_json=as_json)


@version.command("show")
def show_one(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    tenant: TenantOption,
    wait: Annotated[
        float, typer.Option(min=0, max=120, help="Seconds to wait for its check to be done.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Show one version; --json has its files, its manifest, and where it comes from."""
    path = adapter_path(tenant, name, "versions", version)
    found = client_of(context).call("GET", path, params={"wait": wait}, timeout=patience(wait))
    answer(found, DETAILS, as_json=as_json)


@version.command("report")
def report(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """What was found in a version when it was checked."""
    found = client_of(context).call(
        "GET", adapter_path(tenant, name, "versions", version, "report")
    )
    _show_report(found, as_json=as_json)


def _changes(verb: str) -> Callable[..., None]:
    """The command that moves a version to another state by `verb`, which takes nothing else."""

    def change(
        context: typer.Context,
        name: AdapterName,
        version: VersionName,
        tenant: TenantOption,
        if_match: IfMatch = None,
        as_json: Json = False,
    ) -> None:
        _change(context, (tenant, name, version, verb), if_match, as_json=as_json)

    return change


for _verb, _help in CHANGES.items():
    version.command(_verb, help=_help)(_changes(_verb))


@version.command("deprecate")
def deprecate(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    tenant: TenantOption,
    date: Annotated[
        str | None,
        typer.Option(metavar="YYYY-MM-DD", help="From that day on (UTC) it is not served."),
    ] = None,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Say that a version is not to be used any more; until a date it is served on."""
    body = {"date": date}
    _change(context, (tenant, name, version, "deprecate"), if_match, body, as_json=as_json)


@version.command("delete")
def delete(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    tenant: TenantOption,
    aliases: Annotated[
        str | None,
        typer.Option(
            help="What aliases of it are to mean: a version, or remove.", show_default="refuse"
        ),
    ] = None,
    drain_s: DrainSeconds = None,
    erase: Erase = False,
    yes: Yes = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Delete a version. Refused while an alias means it, without --aliases."""
    confirm(f"Delete {version} of {name} of {tenant}?", yes=yes)
    query = deletion_query(drain_s, erase=erase)
    query |= {} if aliases is None else {"force": True, "aliases": aliases}
    path = adapter_path(tenant, name, "versions", version)
    deleted = client_of(context).call("DELETE", path, params=query, headers=meant_for(if_match))
    answer(deleted, ("id", "deleted"), as_json=as_json)


@version.command("validate")
def validate(
    context: typer.Context,
    folder: Folder,
    tenant: TenantOption,
    name: FolderName = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Check a PEFT folder as `adapter push` would, and keep nothing of it.

    The adapter must be there. Exit status 1 where it would be refused; --json prints the report
    then, too.
    """
    client = client_of(context)
    name = name or folder.resolve().name
    paths = files_of(folder)
    path = adapter_path(tenant, name, "validate")
    response = send_files(client, path, paths, {"strict": strict})
    if not response.is_success:
        if as_json and (report := report_of(response)):
            show_json({"report": report})
        fail(describe_error(response))
    found = response.json()
    show_json(found) if as_json else _show_report(found["report"], as_json=False)


def deletion_query(drain_s: int | None, *, erase: bool) -> dict[str, Any]:
    """What `--drain-s` and `--erase` say, in a query."""
    query: dict[str, Any] = {} if drain_s is None else {"drain_s": drain_s}
    return query | ({"erase": True} if erase else {})


def _show_report(report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(report)
        return
    show([report], ("status", "digest"))
    for line in describe_checks(report.get("checks", [])):
        stderr.print(line)


def _change(
    context: typer.Context,
    named: tuple[str, str, str, str],
    if_match: str | None,
    body: dict[str, Any] | None = None,
    *,
    as_json: bool,
) -> None:
    """named: the tenant, the adapter, its version, and what becomes of that."""
    tenant, adapter, version, verb = named
    changed = client_of(context).call(
        "POST",
        adapter_path(tenant, adapter, "versions", version, verb),
        json=body,
        headers=meant_for(if_match),
    )
    answer(changed, DETAILS, as_json=as_json)
