"""What a back-up is made of: an archive for each store, also of stores that are in use."""

from __future__ import annotations

import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.launcher.postgres import PostgresServer
from tests.chart.scripts import script
from tests.fixtures.servers import TestDatabase

ADAPTER, FILE = "ten_a/digest/adapter_model.safetensors", "ten_a/fil_a"
LARGE_BYTES = 1 << 26


def write(path: Path, data: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Adapters as the chart and compose lay them, with tenants' files in a folder there."""
    root = tmp_path / "store"
    write(root / ADAPTER)
    write(root / ".staging" / "half" / "adapter_model.safetensors")
    write(root / ".files" / FILE)
    write(root / ".files" / "ten_a" / ".fil_b")
    return root


def names(archive: Path) -> set[str]:
    """Of the files in it."""
    with tarfile.open(archive) as found:
        return {each.name.removeprefix("./") for each in found if each.isfile()}


def test_adapters_and_files_are_archives_of_their_own(
    store: Path, postgres: PostgresServer, database: TestDatabase, tmp_path: Path
) -> None:
    """Nothing is in both, and what is only being written is in none."""
    made = tmp_path / "made"
    done = script("back-up.sh", made, postgres, database.owner_url, store, store / ".files")
    assert done.returncode == 0, done.stderr
    assert {each.name for each in made.iterdir()} == {"registry.dump", "adapters.tar", "files.tar"}
    assert names(made / "adapters.tar") == {ADAPTER}
    assert names(made / "files.tar") == {FILE}


def test_stores_beside_each_other_are_whole(
    store: Path, postgres: PostgresServer, database: TestDatabase, tmp_path: Path
) -> None:
    files = (store / ".files").rename(tmp_path / "files")
    link = tmp_path / "link"
    link.symlink_to(files)
    made = tmp_path / "made"
    done = script("back-up.sh", made, postgres, database.owner_url, store, link)
    assert done.returncode == 0, done.stderr
    assert (names(made / "adapters.tar"), names(made / "files.tar")) == ({ADAPTER}, {FILE})


@contextmanager
def growing(path: Path) -> Iterator[None]:
    """A file that somebody writes to for the length of the block."""
    over = threading.Event()

    def grow() -> None:
        with path.open("ab", buffering=0) as file:
            while not over.wait(0.001):
                file.write(b"x")

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_file_that_changes_while_it_is_read_is_no_failure(
    store: Path, postgres: PostgresServer, database: TestDatabase, tmp_path: Path
) -> None:
    """The first part is the control: of such a file tar itself complains."""
    large = store / "ten_a" / "of-an-upload"
    write(large)
    os.truncate(large, LARGE_BYTES)
    made = tmp_path / "made"
    with growing(large):
        tar = ["tar", "-cf", tmp_path / "control.tar", "-C", store, "."]
        control = subprocess.run(tar, capture_output=True, text=True, check=False)
        done = script("back-up.sh", made, postgres, database.owner_url, store, store / ".files")
    assert control.returncode == 1 and "changed as we read it" in control.stderr
    assert "changed as we read it" in done.stderr
    assert done.returncode == 0, done.stderr
    assert ADAPTER in names(made / "adapters.tar") and names(made / "files.tar") == {FILE}


@pytest.mark.parametrize("wrong", ["missing", "the same", "registry"])
def test_control_a_backup_that_is_not_whole_fails(
    wrong: str, store: Path, postgres: PostgresServer, database: TestDatabase, tmp_path: Path
) -> None:
    files = {"missing": tmp_path / "nowhere", "the same": store}.get(wrong)
    url = database.owner_url + ("_gone" if wrong == "registry" else "")
    done = script("back-up.sh", tmp_path / "made", postgres, url, store, files)
    assert done.returncode != 0 and done.stderr
