"""`tenfold serve`: any model folder, no tenants yet, own or external servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.launcher.secrets_file import load_or_create_secrets
from tests.builders.open_folder import open_folder
from tests.e2e.running_stack import RunningStack, start_stack
from tests.fixtures.servers import TestDatabase


@pytest.fixture(scope="session")
def model(demo_base: Path) -> Path:
    return demo_base


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as path:
        yield path


@pytest.fixture
def external(
    model: Path, database: TestDatabase, redis_url: str, tmp_path: Path
) -> Iterator[RunningStack]:
    env = {"TENFOLD_DATABASE_URL": database.app_url, "TENFOLD_REDIS_URL": redis_url}
    stack = start_stack("serve", tmp_path, "--model", model, env=env)
    yield stack
    stack.stop()


def test_the_admin_key_is_shown_on_the_first_start_only(model: Path, folder: Path) -> None:
    first = start_stack("serve", folder, "--model", model, "--model-id", "acme/base")
    secrets, is_new = load_or_create_secrets(folder / "secrets.json")
    assert not is_new
    assert secrets.admin_key in first.output.read_text()
    headers = {"authorization": f"Bearer {secrets.admin_key}"}
    tenants = f"{first.admin_url}/admin/v1/tenants"
    assert httpx.get(tenants, headers=headers).json()["data"] == []
    assert httpx.get(tenants, headers={"authorization": "Bearer no"}).status_code == 401
    assert first.stop() == 0
    second = start_stack("serve", folder, "--model", model)
    assert secrets.admin_key not in second.output.read_text()
    assert second.stop() == 0


def test_external_servers_are_used_and_none_is_started(external: RunningStack) -> None:
    assert httpx.get(f"{external.base_url}/readyz").status_code == 200
    assert not (external.data_dir / "postgres").exists()
    assert not (external.data_dir / "valkey").exists()
