"""`tenfold demo` from the outside: what tenants get, what it leaves in its folder, how it ends."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.builders.open_folder import open_folder
from tests.e2e.running_stack import CHECKOUT, NUM_CHILDREN, RunningStack, lives, start_demo
from tests.e2e.two_tenants import (
    clients,
    test_a_leak_is_named,
    test_both_tenants_get_their_own_digest_under_one_name,
    test_mixed_streamed_answers_equal_each_tenants_solo_answer,
    test_the_others_adapter_is_not_found_in_the_same_bytes_as_what_does_not_exist,
    test_the_tenants_path_serves_only_its_own_key,
)

__all__ = [
    "clients",
    "test_a_leak_is_named",
    "test_both_tenants_get_their_own_digest_under_one_name",
    "test_mixed_streamed_answers_equal_each_tenants_solo_answer",
    "test_the_others_adapter_is_not_found_in_the_same_bytes_as_what_does_not_exist",
    "test_the_tenants_path_serves_only_its_own_key",
]


def test_demo_json_is_private_and_has_what_a_client_needs(running_demo: RunningStack) -> None:
    path = running_demo.data_dir / "demo.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    info = running_demo.info
    assert set(info) == {"base_url", "admin_url", "admin_key", "tenants"}
    assert set(info["tenants"]) == {"acme", "globex"}
    for tenant in info["tenants"].values():
        assert set(tenant) == {"api_key", "models"}
        assert "support-bot" in tenant["models"]
    assert httpx.get(f"{info['base_url']}/readyz").status_code == 200
    assert httpx.get(f"{info['admin_url']}/metrics").status_code == 200


def test_output_has_no_terminal_codes_and_names_every_slow_step(running_demo: RunningStack) -> None:
    output = running_demo.output.read_text()
    assert "\x1b" not in output
    for step in ("Converting the base model", "Starting Postgres", "Setting up tenants"):
        assert f"✓ {step}" in output


def test_a_printed_curl_line_works_as_it_stands(running_demo: RunningStack, tmp_path: Path) -> None:
    output = running_demo.output.read_text()
    start = output.index("# globex\n")
    command = output[start : output.index("\n\n", start)]
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=220
    )
    assert '"support-bot"' in done.stdout
    assert '"assistant"' in done.stdout


def test_a_second_start_on_a_live_folder_says_so(running_demo: RunningStack) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "demo", "--data-dir", running_demo.data_dir],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"in use by a running process (pid {running_demo.process.pid})" in done.stderr
    assert running_demo.process.poll() is None


def test_a_taken_port_is_a_message(running_demo: RunningStack, tmp_path: Path) -> None:
    port = str(running_demo.port)
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "demo", "--data-dir", tmp_path, "--port", port],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def folder(running_demo: RunningStack) -> Iterator[Path]:
    """A folder for demos that are killed and started again; its base is converted."""
    models = Path("models") / "SmolLM2-135M-Instruct"
    with open_folder() as folder:
        (folder / models).mkdir(parents=True)
        for file in (running_demo.data_dir / models).iterdir():
            (folder / models / file.name).hardlink_to(file)
        yield folder


@pytest.fixture
def mortal(folder: Path) -> Iterator[RunningStack]:
    demo = start_demo(folder)
    yield demo
    if demo.process.poll() is None:
        demo.stop()


def test_nothing_outlives_a_killed_demo_and_the_next_start_keeps_its_keys_until_ctrl_c(
    mortal: RunningStack, folder: Path
) -> None:
    processes = mortal.descendants()
    assert len(processes) >= NUM_CHILDREN
    mortal.process.kill()
    mortal.process.wait()
    before = mortal.info
    again = start_demo(folder)
    assert not any(map(lives, processes))
    assert again.info["tenants"] == before["tenants"]
    assert again.info["admin_key"] == before["admin_key"]
    assert again.ends_whole(signal.SIGINT, NUM_CHILDREN)
