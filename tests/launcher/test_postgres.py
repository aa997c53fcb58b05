"""The private Postgres: passwords, restart, what a killed run leaves, the user it runs as."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from app.launcher import postgres_home
from app.launcher.errors import ChildExitedError, FolderInUseError
from app.launcher.postgres import STILL_IN_USE, PostgresServer
from tests.builders.open_folder import open_folder


def raw(url: str) -> str:
    return url.replace("postgresql+asyncpg://", "postgresql://")


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as path:
        yield path


@pytest.fixture
def homes_of_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    homes = folder / "homes"
    monkeypatch.setattr(postgres_home, "HOMES_OF_ROOT", homes)
    return homes


async def test_app_role_is_bound_by_row_level_security(folder: Path) -> None:
    with PostgresServer(folder / "pg", durable=False) as server:
        connection = await asyncpg.connect(raw(server.app_url()))
        row = await connection.fetchrow(
            "SELECT rolname, rolsuper, rolbypassrls, rolcreatedb, rolcreaterole "
            "FROM pg_roles WHERE rolname = current_user"
        )
        await connection.close()
    assert row is not None
    assert list(row) == ["tenfold_app", False, False, False, False]


async def test_a_wrong_password_is_refused(folder: Path) -> None:
    with PostgresServer(folder / "pg", durable=False) as server:
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(raw(server.app_url(password="not-this")))
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(raw(server.url_of("postgres", "", "postgres")))


def test_passwords_are_private_and_not_in_the_process_list(folder: Path) -> None:
    with PostgresServer(folder / "pg", durable=False) as server:
        home = server.home
        secrets = {home.superuser_password, home.app_password}
        for name in ("superuser-password", "app-password"):
            assert stat.S_IMODE((home.path / name).stat().st_mode) == 0o600
        command = Path(f"/proc/{server.child.pid}/cmdline").read_bytes().decode()
    assert len(secrets) == 2
    assert not any(secret in command for secret in secrets)


def test_data_outlives_a_restart(folder: Path) -> None:
    server = PostgresServer(folder / "pg", durable=False)
    with server:
        server.run_sql("CREATE TABLE kept (n int); INSERT INTO kept VALUES (42)", "tenfold")
    with server:
        assert server.run_sql("SELECT n FROM kept", "tenfold") == "42"


def test_start_repairs_what_a_killed_server_left(folder: Path) -> None:
    server = PostgresServer(folder / "pg", durable=False)
    server.start()
    server.run_sql("CREATE TABLE kept (n int);\nCHECKPOINT;", "tenfold")
    os.kill(server.child.pid, signal.SIGKILL)
    server.child._process.wait()
    pid_file = server.home.cluster / "postmaster.pid"
    assert pid_file.exists()
    server.stop()
    # The killed server's pid has meanwhile been given to a process of the same user.
    lines = pid_file.read_text().split("\n")
    with subprocess.Popen(["sleep", "60"], **_as_server_user()) as stranger:
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]))
        with server:
            assert server.run_sql("SELECT count(*) FROM kept", "tenfold") == "0"
        assert stranger.poll() is None
        stranger.kill()


def test_start_waits_for_what_a_killed_servers_processes_hold(folder: Path) -> None:
    """Each of them ends as soon as it notices; on a busy machine that takes a moment."""
    server = PostgresServer(folder / "pg", durable=False)
    server.start()
    slow = psutil.Process(server.child.pid).children()[0]
    slow.suspend()
    os.kill(server.child.pid, signal.SIGKILL)
    server.stop()
    waking = threading.Timer(1.0, slow.resume)
    waking.start()
    with server:
        assert server.run_sql("SELECT 1") == "1"
        assert waking.finished.is_set() and STILL_IN_USE in server._log_path.read_text()


def _as_server_user() -> dict[str, int]:
    uid, gid = postgres_home._server_user()
    return {"user": uid, "group": gid} if uid >= 0 else {}


def test_a_second_server_on_a_live_folder_is_refused(folder: Path) -> None:
    with PostgresServer(folder / "pg", durable=False) as server:
        with pytest.raises(FolderInUseError, match=str(os.getpid())):
            PostgresServer(folder / "pg", durable=False).start()
        server.run_sql("SELECT 1")


def test_a_failing_start_shows_the_servers_own_words(folder: Path) -> None:
    server = PostgresServer(folder / "pg", durable=False)
    with server:
        cluster = server.home.cluster
    (cluster / "PG_VERSION").write_text("9\n")
    with pytest.raises(ChildExitedError, match="incompatible with server"):
        server.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run it as somebody else")
class TestAsRoot:
    def test_it_runs_as_nobody(self, folder: Path) -> None:
        with PostgresServer(folder / "pg", durable=False) as server:
            assert psutil.Process(server.child.pid).username() == "nobody"
            assert server.home.path == folder / "pg"

    def test_a_folder_that_nobody_can_enter_is_served_and_stays_closed(
        self, tmp_path: Path, homes_of_root: Path
    ) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        server = PostgresServer(closed / "pg", durable=True)
        with server:
            server.run_sql("CREATE TABLE kept (n int)", "tenfold")
            assert server.home.path.parent == homes_of_root
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
        with server:
            assert server.run_sql("SELECT count(*) FROM kept", "tenfold") == "0"

    def test_binaries_that_nobody_can_enter_are_copied(self, folder: Path, tmp_path: Path) -> None:
        closed = tmp_path / "site-packages"
        closed.mkdir(mode=0o700)
        package = postgres_home.find_bin_dir().parent.parent
        for name in (package.name, f"{package.name}.libs"):
            subprocess.run(["cp", "-al", package.parent / name, closed / name], check=True)
        bin_dir = closed / package.name / "pginstall" / "bin"
        with PostgresServer(folder / "pg", durable=False, bin_dir=bin_dir) as server:
            assert server.home.bin_dir.is_relative_to(server.home.path)
            assert server.run_sql("SELECT 1") == "1"


def _interpreter_for_nobody() -> str:
    """An interpreter of this version that user nobody may run, which one in /root is not."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, shutil.which(version, path="/usr/bin:/usr/local/bin")):
        if candidate and postgres_home._can_enter(
            *postgres_home._server_user(), Path(candidate).resolve().parent
        ):
            return candidate
    pytest.skip(f"no {version} that user nobody may run")


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_it_starts_for_an_ordinary_user(folder: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from app.launcher.postgres import PostgresServer\n"
        "with PostgresServer(Path(sys.argv[1]), durable=False) as server:\n"
        "    print(server.run_sql('SELECT 6 * 7'))\n"
    )
    uid, gid = postgres_home._server_user()
    own = folder / "own"
    own.mkdir()
    os.chown(own, uid, gid)
    checkout = Path(postgres_home.__file__).parents[2]
    packages = Path(pytest.__file__).parents[1]
    done = subprocess.run(
        [_interpreter_for_nobody(), "-c", script, own / "pg"],
        user=uid,
        group=gid,
        extra_groups=[],
        cwd=checkout,
        env={"PYTHONPATH": f"{checkout}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "42", done.stderr
