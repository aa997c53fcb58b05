"""What is sent is written to a disk that may be slow, and the event loop does not wait for it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from tests.builders.operator import OPERATOR, Tenant
from tests.builders.part_sender import PartSender

CONFIG = "adapter_config.json"


class Noted:
    """A file; `threads` are those that opened and closed it."""

    def __init__(self, file: IO[bytes], threads: list[int]) -> None:
        self._file = file
        self._threads = threads
        threads.append(threading.get_ident())

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def close(self) -> None:
        self._threads.append(threading.get_ident())
        self._file.close()


async def test_no_uploads_file_is_opened_or_closed_on_the_event_loop(
    sender: PartSender,
    admin: httpx.AsyncClient,
    files: dict[str, bytes],
    acme: Tenant,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    open_file = Path.open

    def noted(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        opened = open_file(path, mode, *args, **options)
        is_upload = "uploads" in path.parts and mode == "xb"
        return Noted(opened, threads) if is_upload else opened

    monkeypatch.setattr(Path, "open", noted)
    (part, content), *_ = sender.parts(await sender.begin(files), files)
    assert (await sender.put(part, content)).status_code == 200
    unfinished = f'--line\r\nContent-Disposition: form-data; name="{CONFIG}"\r\n\r\n{{'
    headers = {**OPERATOR, "content-type": "multipart/form-data; boundary=line"}
    path = "/admin/v1/tenants/acme/adapters/bot/versions"
    response = await admin.post(path, content=unfinished.encode(), headers=headers)
    assert response.json()["error"]["code"] == "length_mismatch"
    assert len(threads) == 4 and threading.get_ident() not in threads

    (tmp_path / "uploads").mkdir()
    (tmp_path / "uploads" / "control").open("xb").close()
    assert threads[4:] == [threading.get_ident()] * 2
