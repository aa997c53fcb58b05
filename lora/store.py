"""Where the bytes of accepted adapters live, addressed by (tenant, digest).

Knows nothing of what an adapter contains. Invariants: a folder that can be fetched is complete
and holds exactly the bytes its digest names; no tenant's folder tells anything of another's;
a locator meets a strict pattern before it meets a path.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from lora.digest import adapter_digest, copy_and_hash, hash_file

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
EVAL_FILE = "eval.jsonl"
ADAPTER_FILES = frozenset({CONFIG_FILE, WEIGHTS_FILE, CHAT_TEMPLATE_FILE, EVAL_FILE})

_TENANT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LOCATOR = re.compile(rf"({_TENANT_ID.pattern})/([0-9a-f]{{64}})")
_STAGING = ".staging"
STALE_STAGING_S = 86_400.0  # nobody takes so long to write one adapter
_TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})  # what a rename meets


class AdapterStoreError(Exception):
    """Base of the store's errors."""


class AdapterMissingError(AdapterStoreError):
    """The store has no complete adapter under this locator."""


class StoreUnavailableError(AdapterStoreError):
    """The store itself is not there: nothing is known of any adapter."""


class AdapterCorruptError(AdapterStoreError):
    """The bytes offered or found are not those the digest names."""


class AdapterStore(Protocol):
    """A content-addressed place for adapter folders. Blocking: call it from a thread."""

    def put(self, tenant_id: str, digest: str, files: Mapping[str, Path]) -> str:
        """Keep `files` (name in the adapter -> where it lies now); return the locator.

        Atomic and idempotent; what is there already is replaced where it is damaged.
        Raises AdapterCorruptError where the bytes are not `digest`'s.
        """
        ...

    def fetch(self, locator: str, *, anew: bool = False) -> Path:
        """A readable folder with the adapter's files.

        Raises AdapterMissingError, or StoreUnavailableError.
        anew: what was fetched before turned out to be damaged: no copy of it will do.
        """
        ...

    def read(self, locator: str, name: str) -> bytes:
        """One small file of an adapter, without the others; it may be damaged.

        Raises AdapterMissingError, or StoreUnavailableError.
        """
        ...

    def read_range(self, locator: str, name: str, start: int, num_bytes: int) -> bytes:
        """A piece of one file: what there is from `start` on, `num_bytes` at most. As `read`."""
        ...

    def sign(self, locator: str, name: str, lifetime: timedelta) -> str | None:
        """A URL by which anybody may read one file for so long; None where the store has none.

        Raises AdapterMissingError for what is no locator, or StoreUnavailableError.
        """
        ...

    def contains(self, locator: str) -> bool:
        """Whether the adapter is there, and whole, without a look at what is in its files.

        What a `delete` that failed has left is not. Raises AdapterMissingError for what is no
        locator, or StoreUnavailableError.
        """
        ...

    def delete(self, locator: str) -> None:
        """Forget the adapter; nothing happens where it is not there."""
        ...


class LocalAdapterStore:
    """An `AdapterStore` in one local (or shared) folder: `root/<tenant_id>/<digest hex>/`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, tenant_id: str, digest: str, files: Mapping[str, Path]) -> str:
        locator = locator_of(tenant_id, digest)
        check_files(files)
        target = folder_of(self._root, locator)
        if _holds(target, digest):
            return locator
        with self._staging() as staging:
            folder = Path(staging) / "adapter"
            folder.mkdir()
            copies = [copy_and_hash(path, folder / name) for name, path in files.items()]
            if (found := adapter_digest(copies)) != digest:
                raise AdapterCorruptError(f"files of {digest} hash to {found}")
            for copy in copies:
                _fsync(folder / copy.name)
            _fsync(folder)
            _publish(folder, target, digest)
        return locator

    def fetch(self, locator: str, *, anew: bool = False) -> Path:
        folder = folder_of(self._root, locator)
        if not is_complete(folder):
            if not self._root.is_dir():
                raise StoreUnavailableError(f"{self._root} is not there")
            raise AdapterMissingError(f"no adapter at {locator}")
        return folder

    def read(self, locator: str, name: str) -> bytes:
        try:
            return (self.fetch(locator) / name).read_bytes()
        except FileNotFoundError as error:
            raise AdapterMissingError(f"no {name} at {locator}") from error

    def read_range(self, locator: str, name: str, start: int, num_bytes: int) -> bytes:
        try:
            with (self.fetch(locator) / name).open("rb") as source:
                source.seek(start)
                return source.read(num_bytes)
        except FileNotFoundError as error:
            raise AdapterMissingError(f"no {name} at {locator}") from error

    def sign(self, locator: str, name: str, lifetime: timedelta) -> str | None:
        split_locator(locator)
        return None

    def contains(self, locator: str) -> bool:
        split_locator(locator)
        try:
            self.fetch(locator)
        except AdapterMissingError:
            return False
        return True

    def delete(self, locator: str) -> None:
        folder = folder_of(self._root, locator)
        with self._staging() as staging:
            _move_aside(folder, Path(staging) / "deleted")

    def _staging(self) -> tempfile.TemporaryDirectory[str]:
        """A scratch folder on the store's own file system, so that a rename is atomic."""
        folder = self._root / _STAGING
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale(folder, time.time() - STALE_STAGING_S)
        return tempfile.TemporaryDirectory(dir=folder)


def remove_stale(staging: Path, before_s: float) -> None:
    """Remove what killed processes left in `staging`: folders that nobody changed since then.

    before_s: since 1970. What another process removes meanwhile, or works on, is left alone.
    """
    for left in staging.glob("*"):
        with suppress(OSError):
            if left.stat().st_mtime < before_s:
                shutil.rmtree(left, ignore_errors=True)


def locator_of(tenant_id: str, digest: str) -> str:
    """`<tenant_id>/<digest hex>`. Raises ValueError for an id or a digest that is not one."""
    match = _DIGEST.fullmatch(digest)
    if _TENANT_ID.fullmatch(tenant_id) is None or match is None:
        raise ValueError("not a tenant id and a digest")
    return f"{tenant_id}/{match[1]}"


def split_locator(locator: str) -> tuple[str, str]:
    """The inverse: (tenant_id, digest hex). Raises AdapterMissingError for what is no locator."""
    match = _LOCATOR.fullmatch(locator)
    if match is None:
        raise AdapterMissingError("not a locator")
    return match[1], match[2]


def folder_of(root: Path, locator: str) -> Path:
    """Where an adapter lies in a folder of adapters. Raises AdapterMissingError."""
    return root.joinpath(*split_locator(locator))


def check_files(files: Mapping[str, object]) -> None:
    """Raises ValueError where these are not the names of an adapter's files."""
    if not {CONFIG_FILE, WEIGHTS_FILE} <= files.keys() <= ADAPTER_FILES:
        raise ValueError(f"an adapter does not consist of {sorted(files)}")


def is_complete(folder: Path) -> bool:
    """Whether a folder has what no adapter is without."""
    return (folder / CONFIG_FILE).is_file() and (folder / WEIGHTS_FILE).is_file()


def _holds(folder: Path, digest: str) -> bool:
    """Whether the bytes in `folder` are those that `digest` names. Reads all of them."""
    try:
        files = [hash_file(path) for path in folder.iterdir() if path.name in ADAPTER_FILES]
    except OSError:
        return False
    return adapter_digest(files) == digest


def _move_aside(folder: Path, target: Path) -> None:
    """One rename, so that nobody ever fetches half an adapter; nothing where there is none."""
    with suppress(FileNotFoundError):
        folder.rename(target)


def _publish(folder: Path, target: Path, digest: str) -> None:
    """Make `folder` the adapter at `target`, unless a sound one is there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            folder.rename(target)
            break
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            # Sound where somebody else published the digest first: those are the same bytes.
            if _holds(target, digest):
                break
            # A damaged one steps aside whole: it may be missing for a moment, but never half.
            _move_aside(target, Path(tempfile.mkdtemp(dir=folder.parent)) / "damaged")
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
