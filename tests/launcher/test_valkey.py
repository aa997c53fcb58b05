"""The private Valkey: password, settings, what is kept over a restart."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from app.launcher.errors import ChildExitedError, FolderInUseError
from app.launcher.ports import free_port
from app.launcher.valkey import ValkeyServer


def test_it_asks_for_its_password_and_never_evicts(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path, password="secret", durable=False) as server:
        with Redis.from_url(server.url) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        with (
            Redis.from_url(server.url.replace("secret", "wrong")) as stranger,
            pytest.raises(AuthenticationError),
        ):
            stranger.ping()


def test_the_password_is_private(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path, password="secret", durable=False) as server:
        command = Path(f"/proc/{server.child.pid}/cmdline").read_bytes()
    assert stat.S_IMODE((tmp_path / "valkey.conf").stat().st_mode) == 0o600
    assert b"secret" not in command


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_server_keeps_its_data(tmp_path: Path, durable: bool) -> None:
    server = ValkeyServer(tmp_path, password="secret", durable=durable)
    with server, Redis.from_url(server.url) as client:
        client.set("kept", "yes")
    with server, Redis.from_url(server.url) as client:
        assert client.get("kept") == (b"yes" if durable else None)


def test_a_second_server_on_a_live_folder_is_refused(tmp_path: Path) -> None:
    with (
        ValkeyServer(tmp_path, password="secret", durable=False),
        pytest.raises(FolderInUseError, match=str(os.getpid())),
    ):
        ValkeyServer(tmp_path, password="secret", durable=False).start()


def test_a_taken_port_is_reported_in_the_servers_own_words(tmp_path: Path) -> None:
    port = free_port()
    with (
        ValkeyServer(tmp_path / "a", password="one", durable=False, port=port),
        pytest.raises(ChildExitedError, match="already in use"),
    ):
        ValkeyServer(tmp_path / "b", password="two", durable=False, port=port).start()
