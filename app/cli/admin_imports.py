"""`tenfold admin import ...`: a worker fetches an adapter from where it is published.

Knows nothing of sources. Invariant: a token is read from the environment, never from the command
line, where every process of the machine could read it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import typer

from app.cli.admin_client import (
    AdapterName,
    AdminClient,
    IfMatch,
    Json,
    TenantOption,
    adapter_path,
    answer,
    client_of,
    describe_error,
    fail,
    meant_for,
    stderr,
)
from app.cli.admin_push import Activate, License, Strict, ensure_adapter

COLUMNS = ("id", "source", "revision", "state", "bytes_done", "version_id", "error", "etag")
PROGRESS = ("state", "bytes_done", "bytes_total", "version_id", "error")
TOKEN_VARIABLE = "TENFOLD_IMPORT_TOKEN"
SILENCE_S = 60.0
"""The server says something every quarter of a minute."""
RETRY_S = 1.0
MAX_TRIES = 30

ImportId = Annotated[str, typer.Argument(metavar="IMPORT")]

import_ = typer.Typer(
    name="import", help="Fetch adapters from where they are published.", no_args_is_help=True
)


@import_.command("create")
def create(
    context: typer.Context,
    name: AdapterName,
    source: Annotated[
        str, typer.Argument(help="hf://org/repo@revision, https://..., s3://... or gs://...")
    ],
    tenant: TenantOption,
    sha256: Annotated[
        str | None, typer.Option(help="Of adapter_model.safetensors; another one is refused.")
    ] = None,
    credential_ref: Annotated[
        str | None, typer.Option(help="The name of a token that workers have.")
    ] = None,
    activate: Activate = True,
    strict: Strict = False,
    license_: License = None,
    as_json: Json = False,
) -> None:
    """Fetch a version; makes the adapter if there is none. TENFOLD_IMPORT_TOKEN: for the source."""
    given = {
        "sha256": sha256,
        "credential_ref": credential_ref,
        "token": os.environ.get(TOKEN_VARIABLE) or None,
        "license": license_,
    }
    body: dict[str, Any] = {"source": source, "activate": activate, "strict": strict}
    body |= {field: value for field, value in given.items() if value is not None}
    if "token" in body and credential_ref is not None:
        fail(f"{TOKEN_VARIABLE} or --credential-ref, not both")
    client = client_of(context)
    ensure_adapter(client, tenant, name)
    begun = client.call("POST", adapter_path(tenant, name, "imports"), json=body)
    answer(begun, COLUMNS, as_json=as_json)


@import_.command("list")
def list_(
    context: typer.Context, name: AdapterName, tenant: TenantOption, as_json: Json = False
) -> None:
    """List an adapter's imports."""
    rows = list(client_of(context).list_all(adapter_path(tenant, name, "imports")))
    answer(rows, COLUMNS, as_json=as_json)


@import_.command("show")
def show_one(
    context: typer.Context,
    name: AdapterName,
    import_id: ImportId,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """Show one import."""
    found = client_of(context).call("GET", adapter_path(tenant, name, "imports", import_id))
    answer(found, COLUMNS, as_json=as_json)


@import_.command("events")
def events(
    context: typer.Context,
    name: AdapterName,
    import_id: ImportId,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """Follow an import to its end. Exit status 1 where it brings no version."""
    path = adapter_path(tenant, name, "imports", import_id, "events")
    for shown in _until_ended(client_of(context), path):
        if as_json:
            typer.echo(json.dumps(shown))  # an object a line
        else:
            said = (f"{field}={shown[field]}" for field in PROGRESS if shown.get(field) is not None)
            typer.echo(" ".join(said))
    if shown["state"] != "succeeded":
        raise typer.Exit(1)


@import_.command("cancel")
def cancel(
    context: typer.Context,
    name: AdapterName,
    import_id: ImportId,
    tenant: TenantOption,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Stop an import."""
    path = adapter_path(tenant, name, "imports", import_id, "cancel")
    cancelled = client_of(context).call("POST", path, headers=meant_for(if_match))
    answer(cancelled, COLUMNS, as_json=as_json)


def _until_ended(client: AdminClient, path: str) -> Iterator[dict[str, Any]]:
    """Its states, each once. A server that ends before the import does is asked again."""
    shown: dict[str, Any] = {}
    num_tries = 0
    while num_tries < MAX_TRIES:
        num_tries += 1
        for event in _events(client, path):
            num_tries = 0
            if event != shown:
                shown = event
                yield shown
        if shown.get("ended_at") is not None:
            return
        time.sleep(RETRY_S)
    fail("the import's events broke off")


def _events(client: AdminClient, path: str) -> Iterator[dict[str, Any]]:
    """The `data` of server-sent events (HTML Living Standard, 9.2); ours are of one line each.

    None where the server is away.
    """
    try:
        with client.http.stream("GET", f"/admin/v1{path}", timeout=SILENCE_S) as response:
            if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return
            if not response.is_success:
                response.read()
                fail(describe_error(response))
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line.removeprefix("data:"))
    except httpx.TransportError as error:
        stderr.print(f"tenfold: {client.http.base_url}: {error}")
