"""A file that is opened in a thread is closed, whenever whoever opened it is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from app.sinks import new_file
from tests.builders.waiting import until


class Disk:
    """Opens and closes files when it may."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_go_on = threading.Event()
        self.files: list[BinaryIO] = []
        self.open = Path.open

    def wait(self) -> None:
        self.is_asked.set()
        assert self.may_go_on.wait(30)

    def open_late(self, path: Path, mode: str) -> Any:
        self.wait()
        return self.open_now(path, mode)

    def open_now(self, path: Path, mode: str) -> BinaryIO:
        self.files.append(cast(BinaryIO, self.open(path, mode)))
        return self.files[-1]


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.may_go_on.set()


async def cancel(task: asyncio.Task[None], disk: Disk) -> None:
    """While it waits for the disk."""
    assert await asyncio.to_thread(disk.is_asked.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    disk.may_go_on.set()


async def test_what_is_opened_for_nobody_any_more_is_closed(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "open", lambda path, mode: disk.open_late(path, mode))

    async def write() -> None:
        async with new_file(tmp_path / "file"):
            raise AssertionError("it is never open")

    await cancel(asyncio.create_task(write()), disk)
    await until(lambda: [file.closed for file in disk.files] == [True])


class SlowToClose:
    def __init__(self, file: BinaryIO, disk: Disk) -> None:
        self._file = file
        self._disk = disk

    def close(self) -> None:
        self._disk.wait()
        self._file.close()


async def test_a_file_is_closed_also_where_nobody_waits_for_that(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Path, "open", lambda path, mode: SlowToClose(disk.open_now(path, mode), disk)
    )

    async def write() -> None:
        async with new_file(tmp_path / "file"):
            pass

    await cancel(asyncio.create_task(write()), disk)
    await until(lambda: [file.closed for file in disk.files] == [True])


async def test_a_file_that_is_there_is_not_written_to(tmp_path: Path) -> None:
    async with new_file(tmp_path / "file") as sink:
        sink.write(b"first")
    with pytest.raises(FileExistsError):
        async with new_file(tmp_path / "file"):
            pass
    assert (tmp_path / "file").read_bytes() == b"first"
