"""`tenfold admin upload ...`, and what `adapter push --resumable` sends: uploads in parts.

Knows nothing of what the files mean. Invariants: parts that the server has are not sent again; an
upload is gone on with only for the very files that were declared when it began; the key goes to
the API and to nobody else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

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
    path_of,
    patience,
    stderr,
)
from lora.digest import hash_file

COLUMNS = ("id", "state", "version_id", "created", "expires_at", "etag")
PART_TIMEOUT_S = 600.0
UPLOADING = "uploading"

UploadId = Annotated[str, typer.Argument(metavar="UPLOAD")]

upload = typer.Typer(name="upload", help="Uploads in parts.", no_args_is_help=True)


@upload.command("list")
def list_(
    context: typer.Context, name: AdapterName, tenant: TenantOption, as_json: Json = False
) -> None:
    """List an adapter's uploads in parts."""
    rows = list(client_of(context).list_all(adapter_path(tenant, name, "uploads")))
    answer(rows, COLUMNS, as_json=as_json)


@upload.command("show")
def show_one(
    context: typer.Context,
    name: AdapterName,
    upload_id: UploadId,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """Show one upload; --json has its parts."""
    found = client_of(context).call("GET", adapter_path(tenant, name, "uploads", upload_id))
    answer(found, COLUMNS, as_json=as_json)


@upload.command("cancel")
def cancel(
    context: typer.Context,
    name: AdapterName,
    upload_id: UploadId,
    tenant: TenantOption,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Give up an upload that is not complete."""
    path = adapter_path(tenant, name, "uploads", upload_id, "cancel")
    cancelled = client_of(context).call("POST", path, headers=meant_for(if_match))
    answer(cancelled, COLUMNS, as_json=as_json)


def send_in_parts(
    client: AdminClient,
    path: str,
    paths: Sequence[Path],
    told: Mapping[str, Any],
    upload_id: str | None,
) -> httpx.Response:
    """Sends what the server has not got yet, and completes the upload.

    path: where an adapter's uploads are. told: what goes with the completion, in its query.
    upload_id: of the upload to go on with; None begins one.
    """
    declared = [_declare(file) for file in paths]
    if upload_id is None:
        begun = client.call("POST", path, json={"files": declared})
        stderr.print(f"If it breaks off, go on with the same and --upload {begun['id']}")
    else:
        begun = client.call("GET", path + path_of(upload_id))
        _check_same(begun, declared)
    if begun["state"] == UPLOADING:
        _send_missing(client, begun["files"], {file.name: file for file in paths})
    complete = path + path_of(begun["id"], "complete")
    # All parts are read, checked and stored before the server begins to wait.
    allowed = patience(PART_TIMEOUT_S + told.get("wait", 0))
    return client.send("POST", complete, params=told, timeout=allowed)


def _declare(path: Path) -> dict[str, Any]:
    file = hash_file(path)
    return {"path": file.name, "bytes": file.num_bytes, "sha256": file.sha256}


def _check_same(begun: Mapping[str, Any], declared: Sequence[Mapping[str, Any]]) -> None:
    """An upload is of certain bytes: a folder that was changed meanwhile is another one."""
    there = {(file["path"], file["bytes"], file["sha256"]) for file in begun["files"]}
    if there != {(file["path"], file["bytes"], file["sha256"]) for file in declared}:
        fail(f"{begun['id']} was begun with other files than are in the folder now")


def _send_missing(
    client: AdminClient, files: Sequence[Mapping[str, Any]], paths: Mapping[str, Path]
) -> None:
    missing = [
        (file, part)
        for file in files
        if not file["skip_upload"]
        for part in file["parts"]
        if part["n"] not in file["received"]
    ]
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=stderr, transient=True) as progress:
        num_bytes = sum(part["bytes"] for _, part in missing)
        task = progress.add_task("Uploading", total=num_bytes)
        for file, part in missing:
            _send_part(client, paths[file["path"]], (part["n"] - 1) * file["part_size"], part)
            progress.advance(task, part["bytes"])


def _send_part(client: AdminClient, path: Path, offset: int, part: Mapping[str, Any]) -> None:
    if not part["url"].startswith("/"):
        fail(f"{part['url']!r} is no path of the API")
    with path.open("rb") as source:
        source.seek(offset)
        data = source.read(part["bytes"])
    headers = {**part["required_headers"], "x-content-sha256": hashlib.sha256(data).hexdigest()}
    try:
        response = client.http.put(
            part["url"], content=data, headers=headers, timeout=PART_TIMEOUT_S
        )
    except httpx.TransportError as error:
        fail(f"part {part['n']} of {path.name} did not arrive: {error}")
    if not response.is_success:
        fail(describe_error(response))
