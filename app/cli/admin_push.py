"""`tenfold admin adapter push`: a PEFT folder, over REST, as a new version.

Knows nothing of what the files mean. Invariant: what is sent are the files that an adapter may
have, under their own names; whatever else lies in the folder stays there.
"""

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
    Json,
    TenantOption,
    adapter_path,
    client_of,
    describe_checks,
    describe_error,
    fail,
    path_of,
    show,
    show_json,
    stderr,
)
from app.cli.admin_uploads import send_in_parts
from lora.store import CHAT_TEMPLATE_FILE, CONFIG_FILE, EVAL_FILE, WEIGHTS_FILE

VERSION_COLUMNS = ("id", "version", "state", "digest", "bytes")
UPLOAD_TIMEOUT_S = 600.0

Folder = Annotated[Path, typer.Argument(exists=True, file_okay=False, metavar="DIR")]
FolderName = Annotated[str | None, typer.Option(show_default="the folder's name")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse it for what is otherwise a warning.")
]
Activate = Annotated[
    bool, typer.Option("--activate/--no-activate", help="Be active once its check is passed.")
]
License = Annotated[
    str | None, typer.Option("--license", help="What it is under, such as apache-2.0.")
]


def push(
    context: typer.Context,
    folder: Folder,
    tenant: TenantOption,
    name: FolderName = None,
    wait: Annotated[float, typer.Option(min=0, max=120, help="Seconds to wait for it.")] = 60,
    activate: Activate = True,
    strict: Strict = False,
    license_: License = None,
    resumable: Annotated[
        bool, typer.Option("--resumable", help="Send it in parts, which can be gone on with.")
    ] = False,
    upload: Annotated[
        str | None,
        typer.Option(metavar="UPLOAD", help="Go on with this upload in parts, by its id."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Upload a PEFT folder as a new version; makes the adapter if there is none of its name."""
    client = client_of(context)
    name = name or folder.resolve().name
    told: dict[str, Any] = {"wait": wait, "strict": strict}
    told |= {} if license_ is None else {"license": license_}
    told |= {} if activate else {"activate": False}
    paths = files_of(folder)
    if upload is None:
        ensure_adapter(client, tenant, name)
    if resumable or upload is not None:
        response = send_in_parts(client, adapter_path(tenant, name, "uploads"), paths, told, upload)
    else:
        response = send_files(client, adapter_path(tenant, name, "versions"), paths, told)
    if not response.is_success:
        fail(describe_error(response))
    show_version(response.json(), as_json=as_json)


def show_version(version: Mapping[str, Any], *, as_json: bool) -> None:
    """A version that was uploaded, with what was found in it. Exit status 1 if it was rejected."""
    if as_json:
        show_json(version)
    else:
        show([version], VERSION_COLUMNS)
        for line in describe_checks(version["report"].get("checks", [])):
            stderr.print(line)
    if version["state"] == "rejected":
        raise typer.Exit(1)


def ensure_adapter(client: AdminClient, tenant: str, name: str) -> None:
    """Makes the adapter, unless there is one of its name."""
    response = client.send("POST", path_of("tenants", tenant, "adapters"), json={"name": name})
    if not response.is_success and not _is_taken(response):
        fail(describe_error(response))


def files_of(folder: Path) -> list[Path]:
    """The files of an adapter that are in a folder."""
    paths = [folder / CONFIG_FILE, folder / WEIGHTS_FILE]
    for missing in (file for file in paths if not file.is_file()):
        fail(f"{missing} is missing: a PEFT folder with safetensors is expected")
    others = (folder / CHAT_TEMPLATE_FILE, folder / EVAL_FILE)
    return paths + [path for path in others if path.is_file()]


def send_files(
    client: AdminClient, path: str, paths: list[Path], told: Mapping[str, Any]
) -> httpx.Response:
    """All files in one request. told: what goes with them, in the query."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with (
        ExitStack() as stack,
        Progress(*columns, TransferSpeedColumn(), console=stderr, transient=True) as progress,
    ):
        num_bytes = sum(file.stat().st_size for file in paths)
        task = progress.add_task("Uploading", total=num_bytes)
        files = {
            file.name: (file.name, _Watched(stack.enter_context(file.open("rb")), progress, task))
            for file in paths
        }
        timeout = httpx.Timeout(UPLOAD_TIMEOUT_S, read=UPLOAD_TIMEOUT_S + told.get("wait", 0))
        return client.send("POST", path, params=told, files=files, timeout=timeout)


def _is_taken(response: httpx.Response) -> bool:
    return response.status_code == 409 and response.json()["error"]["code"] == "name_conflict"


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
