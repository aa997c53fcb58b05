"""`tenfold migrate` as Kubernetes runs it: several at once, and before the server is there."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import asyncpg
import pytest
from sqlalchemy import make_url

from app.launcher.ports import LOOPBACK, free_port
from app.migrate import wait_for_database
from tests.fixtures.servers import TestDatabase


def test_of_several_at_once_one_migrates_and_all_succeed(empty_database: TestDatabase) -> None:
    environment = os.environ | {"TENFOLD_OWNER_DATABASE_URL": empty_database.owner_url}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "app.migrate"], env=environment, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    errors = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors


async def test_server_that_is_not_there_yet_is_awaited(empty_database: TestDatabase) -> None:
    await wait_for_database(empty_database.owner_url, 0)

    nobody = f"postgresql+asyncpg://tenfold:x@{LOOPBACK}:{free_port()}/tenfold"
    started_at = time.monotonic()
    with pytest.raises(OSError):
        await wait_for_database(nobody, 0.6)
    assert time.monotonic() - started_at >= 0.6


async def test_refusal_is_not_waited_out(empty_database: TestDatabase) -> None:
    wrong = make_url(empty_database.owner_url).set(database="no_such_database")
    started_at = time.monotonic()
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await wait_for_database(wrong.render_as_string(hide_password=False), 30)
    assert time.monotonic() - started_at < 10
