"""`tenfold serve`: any model folder, no tenants yet, own or external servers, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.launcher.secrets_file import load_or_create_secrets
from tests.builders.open_folder import open_folder
from tests.e2e.running_stack import NUM_CHILDREN, lives, start_stack
from tests.fixtures.servers import TestDatabase

NUM_OWN_SERVERS = 2


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as path:
        yield path


def test_external_servers_are_used_and_the_admin_key_is_shown_on_the_first_start_only(
    demo_base: Path, database: TestDatabase, redis_url: str, folder: Path
) -> None:
    """The second start is on the same folder, with servers of its own, and ends by a crash."""
    env = {"TENFOLD_DATABASE_URL": database.app_url, "TENFOLD_REDIS_URL": redis_url}
    options = ("--model", demo_base, "--model-id", "acme/base")
    first = start_stack("serve", folder, *options, env=env)
    secrets, is_new = load_or_create_secrets(folder / "secrets.json")
    assert not is_new
    assert secrets.admin_key in first.output.read_text()
    headers = {"authorization": f"Bearer {secrets.admin_key}"}
    tenants = f"{first.admin_url}/admin/v1/tenants"
    assert httpx.get(tenants, headers=headers).json()["data"] == []
    assert httpx.get(tenants, headers={"authorization": "Bearer no"}).status_code == 401
    assert httpx.get(f"{first.base_url}/readyz").status_code == 200
    assert not (folder / "postgres").exists()
    assert not (folder / "valkey").exists()
    assert first.ends_whole(signal.SIGTERM, NUM_CHILDREN - NUM_OWN_SERVERS)

    second = start_stack("serve", folder, *options)
    assert secrets.admin_key not in second.output.read_text()
    processes = second.descendants()
    assert len(processes) >= NUM_CHILDREN
    second.child("engine").kill()
    assert second.process.wait(60) == 1
    assert not any(map(lives, processes)), "a crash of one child stops the rest"
    output = second.output.read_text()
    assert "engine ended unexpectedly (SIGKILL). Last lines of" in output
    assert "engine.log" in output
