"""The files of a data folder: its lock, its secrets; and ports."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.launcher.errors import FolderInUseError, LauncherError, PortInUseError
from app.launcher.lock import FolderLock
from app.launcher.model_source import is_hub_id, resolve_model
from app.launcher.ports import check_port_free, free_port
from app.launcher.secrets_file import load_or_create_secrets

CHECKOUT = Path(__file__).parents[2]


def test_a_folder_has_one_owner_at_a_time(tmp_path: Path) -> None:
    with FolderLock(tmp_path), pytest.raises(FolderInUseError, match=f"pid {os.getpid()}"):
        FolderLock(tmp_path).acquire()
    with FolderLock(tmp_path):
        pass


def test_the_lock_of_a_killed_owner_is_free(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from app.launcher.lock import FolderLock\n"
        "FolderLock(Path(sys.argv[1])).acquire(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=CHECKOUT, check=False)
    assert done.returncode == -9
    assert (tmp_path / "lock").read_text().strip().isdigit()
    with FolderLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_secrets_are_made_once_and_are_private(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    first, is_new = load_or_create_secrets(path)
    assert is_new
    assert load_or_create_secrets(path) == (first, False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secrets = {first.key_pepper, first.admin_key, first.redis_password, first.queue_secret}
    assert len(secrets | {first.envelope_key}) == 5


def test_a_folder_without_a_queue_secret_gets_one_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text('{"key_pepper": "p", "admin_key": "a", "redis_password": "r"}')
    found, is_new = load_or_create_secrets(path)
    assert (found.key_pepper, found.admin_key, found.redis_password) == ("p", "a", "r")
    assert found.queue_secret and found.envelope_key and not is_new
    assert load_or_create_secrets(path) == (found, False)


def test_damaged_secrets_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text('{"key_pepper": "x"')
    with pytest.raises(LauncherError, match="damaged"):
        load_or_create_secrets(path)
    assert path.read_text() == '{"key_pepper": "x"'


def test_a_taken_port_is_named_with_the_option_that_changes_it() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(PortInUseError, match=rf":{port}: Address .* in use.*--admin-port"):
            check_port_free(port, "--admin-port")
    check_port_free(free_port())


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("./models/base", False),
        ("/models/base", False),
        ("models/a/b", False),
        ("base", False),
    ],
)
def test_what_counts_as_a_hub_id(model: str, expected: bool) -> None:
    assert is_hub_id(model) is expected


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path
