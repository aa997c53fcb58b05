"""`tenfold admin adapter ...`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any

import httpx
import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from app.cli.admin_client import (
    AdminClient,
    IfMatch,
    Json,
    client_of,
    describe_checks,
    describe_error,
    fail,
    meant_for,
    show,
    show_json,
    stderr,
)
from app.cli.admin_pull import pull
from lora.store import CHAT_TEMPLATE_FILE, CONFIG_FILE, EVAL_FILE, WEIGHTS_FILE

COLUMNS = ("id", "name", "base_model", "aliases")
VERSION_COLUMNS = ("id", "version", "state", "digest", "bytes")
UPLOAD_TIMEOUT_S = 600.0

adapter = typer.Typer(
    name="adapter", help="Push, pull, list and delete adapters.", no_args_is_help=True
)
adapter.command("pull")(pull)
TenantOption = Annotated[str, typer.Option("--tenant", "-t", help="The tenant's slug or id.")]


@adapter.command("push")
def push(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, metavar="DIR")],
    tenant: TenantOption,
    name: Annotated[str | None, typer.Option(help="[default: the folder's name]")] = None,
    wait: Annotated[float, typer.Option(min=0, max=120, help="Seconds to wait for it.")] = 60,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse it for what is otherwise a warning.")
    ] = False,
    license_: Annotated[
        str | None, typer.Option("--license", help="What it is under, such as apache-2.0.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Upload a PEFT folder as a new version; makes the adapter if there is none of its name."""
    client = client_of(context)
    name = name or folder.resolve().name
    _ensure_adapter(client, tenant, name)
    told: dict[str, Any] = {"wait": wait, "strict": strict}
    told |= {} if license_ is None else {"license": license_}
    response = _upload(client, f"/tenants/{tenant}/adapters/{name}/versions", folder, told)
    if not response.is_success:
        fail(describe_error(response))
    version = response.json()
    if as_json:
        show_json(version)
    else:
        show([version], VERSION_COLUMNS)
        for line in describe_checks(version["report"]["checks"]):
            stderr.print(line)
    if version["state"] == "rejected":
        raise typer.Exit(1)


@adapter.command("list")
def list_(context: typer.Context, tenant: TenantOption, as_json: Json = False) -> None:
    """List a tenant's adapters."""
    rows = list(client_of(context).list_all(f"/tenants/{tenant}/adapters"))
    show_json(rows) if as_json else show(rows, COLUMNS)


@adapter.command("versions")
def versions(
    context: typer.Context, name: str, tenant: TenantOption, as_json: Json = False
) -> None:
    """List an adapter's versions."""
    rows = list(client_of(context).list_all(f"/tenants/{tenant}/adapters/{name}/versions"))
    show_json(rows) if as_json else show(rows, VERSION_COLUMNS)


@adapter.command("alias")
def alias(
    context: typer.Context,
    name: str,
    alias: str,
    version: str,
    tenant: TenantOption,
    wait: Annotated[
        float, typer.Option("--wait", help="Seconds for engines to load the version first.")
    ] = 0,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Point an alias, for instance prod, at a version, for instance v2."""
    path = f"/tenants/{tenant}/adapters/{name}/aliases/{alias}"
    body, query = {"version": version}, {"wait": wait}
    headers = meant_for(if_match)
    moved = client_of(context).call("PUT", path, json=body, params=query, headers=headers)
    show_json(moved) if as_json else show([moved], ("alias", "version", "version_id"))


@adapter.command("delete")
def delete(
    context: typer.Context,
    name: str,
    tenant: TenantOption,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    if_match: IfMatch = None,
    as_json: Json = False,
) -> None:
    """Delete an adapter with all its versions."""
    if not yes:
        typer.confirm(f"Delete {name} of {tenant} with all versions?", abort=True, err=True)
    path = f"/tenants/{tenant}/adapters/{name}"
    deleted = client_of(context).call("DELETE", path, headers=meant_for(if_match))
    show_json(deleted) if as_json else show([deleted], ("id", "deleted"))


def _ensure_adapter(client: AdminClient, tenant: str, name: str) -> None:
    response = client.send("POST", f"/tenants/{tenant}/adapters", json={"name": name})
    if not response.is_success and not _is_taken(response):
        fail(describe_error(response))


def _is_taken(response: httpx.Response) -> bool:
    return response.status_code == 409 and response.json()["error"]["code"] == "name_conflict"


def _upload(
    client: AdminClient, path: str, folder: Path, told: Mapping[str, Any]
) -> httpx.Response:
    """told: what goes with the files, in the query."""
    paths = [folder / CONFIG_FILE, folder / WEIGHTS_FILE]
    for missing in (file for file in paths if not file.is_file()):
        fail(f"{missing} is missing: a PEFT folder with safetensors is expected")
    others = (folder / CHAT_TEMPLATE_FILE, folder / EVAL_FILE)
    paths += [path for path in others if path.is_file()]
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with (
        ExitStack() as stack,
        Progress(*columns, TransferSpeedColumn(), console=stderr, transient=True) as progress,
    ):
        num_bytes = sum(file.stat().st_size for file in paths)
        task = progress.add_task(f"Uploading {folder.name}", total=num_bytes)
        files = {
            file.name: (file.name, _Watched(stack.enter_context(file.open("rb")), progress, task))
            for file in paths
        }
        timeout = httpx.Timeout(UPLOAD_TIMEOUT_S, read=UPLOAD_TIMEOUT_S + told["wait"])
        return client.send("POST", path, params=told, files=files, timeout=timeout)


class _Watched:
    """A file that tells a progress bar what was read of it."""

    def __init__(self, file: IO[bytes], progress: Progress, task: Any) -> None:
        self._file = file
        self._progress = progress
        self._task = task

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._progress.advance(self._task, len(data))
        return data

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)
