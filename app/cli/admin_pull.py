"""`tenfold admin adapter pull`: a version's files, over REST, into a folder.

Knows nothing of stores. Invariants: what is left in the folder is what the version's digest is
over, all of it or none; nothing that was there is written over; no name leads out of the folder;
the key goes to the API and to nobody else.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from app.cli.admin_client import (
    TIMEOUT_S,
    AdapterName,
    AdminClient,
    Json,
    TenantOption,
    VersionName,
    adapter_path,
    client_of,
    describe_error,
    fail,
    show,
    show_json,
)
from lora.digest import CHUNK_BYTES, FileDigest, adapter_digest

COLUMNS = ("path", "bytes", "sha256")


def pull(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    folder: Annotated[Path, typer.Argument(file_okay=False, metavar="DIR")],
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """Download a version's files into a folder, and check that they are what was accepted."""
    client = client_of(context)
    told = client.call("GET", adapter_path(tenant, name, "versions", version, "download"))
    files = told["files"]
    _check_told(files, told["digest"])
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_to_overwrite(folder, files)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as scratch:
        for file in files:
            _fetch(client, file, Path(scratch))
        _refuse_to_overwrite(folder, files)
        for file in files:
            (Path(scratch) / file["path"]).rename(folder / file["path"])
    show_json(told) if as_json else show(files, COLUMNS)


def _check_told(files: Sequence[Mapping[str, Any]], digest: str) -> None:
    for path in (file["path"] for file in files):
        if path in ("", ".", "..") or any(char in path for char in "/\\\0:"):
            fail(f"{path!r} is no name for a file")
    rows = [FileDigest(file["path"], file["bytes"], file["sha256"]) for file in files]
    if adapter_digest(rows) != digest:
        fail(f"the files that the server lists are not those of {digest}")


def _refuse_to_overwrite(folder: Path, files: Sequence[Mapping[str, Any]]) -> None:
    for target in (folder / file["path"] for file in files):
        if os.path.lexists(target):
            fail(f"{target} is there already")


def _fetch(client: AdminClient, file: Mapping[str, Any], folder: Path) -> None:
    path, sha256, num_bytes = file["path"], hashlib.sha256(), 0
    try:
        with _open(client, file["url"]) as response, (folder / path).open("xb") as sink:
            for chunk in response.iter_bytes(CHUNK_BYTES):
                num_bytes += len(chunk)
                if num_bytes > file["bytes"]:
                    break
                sha256.update(chunk)
                sink.write(chunk)
    except httpx.TransportError as error:
        fail(f"{path} did not come whole: {error}")
    if (num_bytes, sha256.hexdigest()) != (file["bytes"], file["sha256"]):
        fail(f"{path} is not the file that was accepted")


@contextmanager
def _open(client: AdminClient, url: str) -> Iterator[httpx.Response]:
    """`url` is a path of the API, or one of the store's own, which needs no key."""
    if url.startswith("/"):
        asked = client.http.stream("GET", url)
    elif url.startswith(("https://", "http://")):
        asked = httpx.stream("GET", url, timeout=TIMEOUT_S)
    else:
        fail(f"{url!r} is no place to download from")
    with asked as response:
        if not response.is_success:
            response.read()
            fail(describe_error(response))
        yield response
