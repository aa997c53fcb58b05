"""The store of Azure, on its emulator: what it has in common with S3, which has more tests.

The emulator is not installed with the tests: `npm install azurite` brings it, and where it is not
on PATH these are skipped. Google's has none that does: fake-gcs-server has no multipart uploads in
XML, by which the store's library sends files.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import obstore
import pytest

from app.launcher.ports import LOOPBACK, free_port
from lora.store import WEIGHTS_FILE, AdapterCorruptError, AdapterMissingError, AdapterStore
from lora.store_open import open_objects, open_parts, open_store
from tests.builders.adapters import lora_tensors, write_adapter
from tests.builders.waiting import wait_until

BUCKET = "tests"
START_TIMEOUT_S = 60.0
UPLOAD_ID, SHA = f"upl_{'0' * 26}", "ab" * 32
# What every Azurite has, as its documentation says.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True, slots=True)
class Cloud:
    """A bucket on an emulator, and what `lora.store_open` takes beside its URL."""

    url: str
    options: Mapping[str, Any]


@contextmanager
def running(command: list[str], folder: Path, is_up: Callable[[], bool]) -> Iterator[None]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        wait_until(is_up, timeout_s=START_TIMEOUT_S)
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def azure(folder: Path) -> Iterator[Cloud]:
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not on PATH")
    port = free_port()
    endpoint = f"http://{LOOPBACK}:{port}/{ACCOUNT}"
    command = [program, "--blobHost", LOOPBACK, "--blobPort", str(port), "--location", str(folder)]
    command += ["--skipApiVersionCheck", "--silent"]
    with running(command, folder, lambda: make_container(endpoint)):
        options = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY, "endpoint": endpoint}
        yield Cloud(f"az://{BUCKET}", {**options, "client_options": {"allow_http": True}})


def make_container(endpoint: str) -> bool:
    """By the service's own signature: the store's library makes none. False: nobody answers."""
    headers = {
        "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True),
        "x-ms-version": "2021-08-06",
    }
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    lines += [f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}", "restype:container"]
    key = base64.b64decode(ACCOUNT_KEY)
    signature = base64.b64encode(hmac.digest(key, "\n".join(lines).encode(), hashlib.sha256))
    headers["authorization"] = f"SharedKey {ACCOUNT}:{signature.decode()}"
    try:
        made = httpx.put(f"{endpoint}/{BUCKET}?restype=container", headers=headers)
    except httpx.TransportError:
        return False
    assert made.status_code == 201, made.text
    return True


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with azure(tmp_path_factory.mktemp("cloud")) as running_cloud:
        yield running_cloud


def opened(cloud: Cloud, cache: Path) -> AdapterStore:
    return open_store(f"{cloud.url}/adapters", cache=cache, **cloud.options)


def test_what_was_put_is_fetched_byte_for_byte_and_gone_once_deleted(
    cloud: Cloud, tmp_path: Path
) -> None:
    files, digest = write_adapter(tmp_path / "upload", lora_tensors())
    locator = opened(cloud, tmp_path / "a").put("ten_acme", digest, files)
    other = opened(cloud, tmp_path / "b")
    assert other.contains(locator)
    folder = other.fetch(locator)
    for name, path in files.items():
        content = path.read_bytes()
        assert (folder / name).read_bytes() == content
        assert bytes(other.read_range(locator, name, 3, 5)) == content[3:8]
    other.delete(locator)
    assert not other.contains(locator)
    with pytest.raises(AdapterMissingError):
        opened(cloud, tmp_path / "c").fetch(locator)


def test_one_changed_byte_is_found_out(cloud: Cloud, tmp_path: Path) -> None:
    files, digest = write_adapter(tmp_path / "upload", lora_tensors())
    locator = opened(cloud, tmp_path / "a").put("ten_globex", digest, files)
    objects = open_objects(f"{cloud.url}/adapters", **cloud.options)
    content = bytearray(bytes(obstore.get(objects, f"{locator}/{WEIGHTS_FILE}").bytes()))
    content[-1] ^= 1
    obstore.put(objects, f"{locator}/{WEIGHTS_FILE}", bytes(content))
    with pytest.raises(AdapterCorruptError):
        opened(cloud, tmp_path / "b").fetch(locator)


def test_parts_are_kept_and_removed(cloud: Cloud, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"x" * (9 << 20))  # of more than one piece of the library's
    parts = open_parts(cloud.url, **cloud.options)
    parts.put(UPLOAD_ID, WEIGHTS_FILE, 1, SHA, part)
    assert b"".join(parts.read(UPLOAD_ID, WEIGHTS_FILE, 1, SHA)) == part.read_bytes()
    parts.delete_all(UPLOAD_ID)
    with pytest.raises(AdapterMissingError):
        list(parts.read(UPLOAD_ID, WEIGHTS_FILE, 1, SHA))
