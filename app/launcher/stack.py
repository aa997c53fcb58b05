"""Tenfold's processes on one machine, in one data folder: which, in what order, with what.

Knows nothing of tenants or of what the command line looks like. Invariants: secrets travel in
environments, never in argument lists; the engine gets no credential of the registry; what waits for
a process fails as soon as any process ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

from app.launcher.child import ChildProcess, ChildSpec
from app.launcher.lock import FolderLock
from app.launcher.ports import LOOPBACK, check_port_free
from app.launcher.postgres import PostgresServer
from app.launcher.secrets_file import load_or_create_secrets
from app.launcher.supervisor import Supervisor
from app.launcher.valkey import ValkeyServer

MIGRATE_TIMEOUT_S = 300.0
READY_TIMEOUT_S = 900.0  # a large base model on a slow disk
# Postgres, Redis, API and engine share this machine's cores: who is late is busy, not away, and a
# wait is no sign that another engine is missing. The environment may say otherwise.
SHARED_MACHINE = {
    "TENFOLD_DEPENDENCY_TIMEOUT_S": "5",
    "TENFOLD_MAX_LOOP_LAG_S": "5",
    "TENFOLD_MAX_QUEUE_WAIT_S": "60",
}
CONCERNS = (
    "DATABASE_URL",
    "OWNER_DATABASE_URL",
    "WORKER_DATABASE_URL",
    "REDIS_URL",
    "QUEUE_SECRET",
    "KEY_PEPPER",
    "ADMIN_KEY",
    "ENVELOPE_KEYS",
)


class Step(Protocol):
    """One thing that is being done."""

    def update(self, what: str, fraction: float) -> None:
        """`what` is being done now; `fraction` of the step, 0 to 1, is behind us."""


class Steps(Protocol):
    """Where progress is shown."""

    def step(self, doing: str) -> AbstractContextManager[Step]:
        """Show that something is being done, until the block ends."""


@dataclass(frozen=True, slots=True)
class StackConfig:
    """What to run. `None` leaves the choice to the process concerned.

    `database_url`, `redis_url`: external servers; where given, none is started for them.
    `owner_url`: the role that may change the schema of an external database; without it an
    external database is taken as migrated; `worker_url`: the role that workers have there, without
    which they have the application's. `admin_key`, `key_pepper`,
    `queue_secret`, `envelope_keys`: override the folder's own.
    """

    data_dir: Path
    port: int
    admin_port: int
    host: str = LOOPBACK
    model_id: str | None = None
    device: str | None = None
    dtype: str | None = None
    batch_invariant: bool | None = None
    threads: int | None = None
    pool_bytes: int | None = None
    database_url: str | None = None
    owner_url: str | None = None
    worker_url: str | None = None
    redis_url: str | None = None
    admin_key: str | None = None
    key_pepper: str | None = None
    queue_secret: str | None = None
    envelope_keys: str | None = None


@dataclass(frozen=True, slots=True)
class RegistryUrls:
    """Of the application's role, the workers', and the one that migrates (None: nobody does)."""

    app: str
    worker: str
    owner: str | None


class Stack:
    """`start`, then `watch` until something ends, then `stop`. One per data folder."""

    def __init__(self, config: StackConfig, steps: Steps) -> None:
        self.config = config
        self.steps = steps
        self._supervisor = Supervisor()
        self._lock = FolderLock(config.data_dir)
        self.admin_key = ""
        self.is_new_admin_key = False

    @property
    def base_url(self) -> str:
        """Where tenants call."""
        return f"http://{self.config.host}:{self.config.port}"

    @property
    def admin_url(self) -> str:
        """Where operators call."""
        return f"http://{self.config.host}:{self.config.admin_port}"

    def acquire(self) -> None:
        """Take the data folder and try the ports, before anything slow. Raises LauncherError."""
        config = self.config
        # Under root, Postgres' user has to pass through this folder; what is secret in it is 0600.
        config.data_dir.mkdir(
            mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True
        )
        self._lock.acquire()
        check_port_free(config.port, "--port", config.host)
        check_port_free(config.admin_port, "--admin-port", config.host)

    def start(self, model: Path) -> None:
        """Serve the base in folder `model`; returns when the API is ready. Raises LauncherError."""
        config = self.config
        secrets, is_new = load_or_create_secrets(config.data_dir / "secrets.json")
        self.admin_key = config.admin_key or secrets.admin_key
        self.is_new_admin_key = is_new and config.admin_key is None
        urls = self._start_postgres()
        redis_url = config.redis_url or self._start_valkey(secrets.redis_password)
        if urls.owner is not None:
            self._migrate(urls.owner, are_separate=urls.worker != urls.app)
        base = _set({"MODEL": model, "MODEL_ID": config.model_id})
        store = {
            "TENFOLD_ADAPTER_STORE": str(config.data_dir / "adapters"),
            "TENFOLD_DATA_DIR": str(config.data_dir),
        }
        registry = {"TENFOLD_KEY_PEPPER": config.key_pepper or secrets.key_pepper}
        queue = {
            "TENFOLD_REDIS_URL": redis_url,
            "TENFOLD_QUEUE_SECRET": config.queue_secret or secrets.queue_secret,
        }
        files = _set(
            {
                "FILE_STORE": config.data_dir / "files",
                "ENVELOPE_KEYS": config.envelope_keys or secrets.envelope_key,
            }
        )
        worker = files | _set({"DATABASE_URL": urls.worker})
        api = _set(
            {
                "DATABASE_URL": urls.app,
                "ADMIN_KEY": self.admin_key,
                "HOST": config.host,
                "PORT": config.port,
                "ADMIN_PORT": config.admin_port,
                "DATA_DIR": config.data_dir,
            }
        )
        with self.steps.step("Starting engine, worker and API"):
            self._start_python("engine", ["engine"], base | store | queue | self._engine_settings())
            self._start_python("worker", ["app.worker"], base | store | queue | registry | worker)
            self._start_python("api", ["app.serve"], base | store | queue | registry | files | api)
            self._supervisor.wait_until(self._is_ready, READY_TIMEOUT_S, "the API")

    def watch(self) -> None:
        """Return never: raises ChildExitedError when a process ends, or StopRequested."""
        self._supervisor.watch()

    def check_running(self) -> None:
        """Raise ChildExitedError if a process has ended."""
        self._supervisor.check_running()

    def stop(self) -> None:
        """Stop everything in reverse order and release the data folder."""
        self._supervisor.stop()
        self._lock.release()

    def _start_postgres(self) -> RegistryUrls:
        config = self.config
        if config.database_url is not None:
            worker_url = config.worker_url or config.database_url
            return RegistryUrls(config.database_url, worker_url, config.owner_url)
        folder = config.data_dir / "postgres"
        server = PostgresServer(folder, durable=True, log_path=self._log_path("postgres"))
        with self.steps.step("Starting Postgres"):
            self._supervisor.start(server)
        return RegistryUrls(server.app_url(), server.worker_url(), server.admin_url)

    def _start_valkey(self, password: str) -> str:
        folder = self.config.data_dir / "valkey"
        server = ValkeyServer(folder, password=password, log_path=self._log_path("valkey"))
        with self.steps.step("Starting Valkey"):
            self._supervisor.start(server)
        return server.url

    def _migrate(self, owner_url: str, *, are_separate: bool) -> None:
        """are_separate: whether workers have a role of their own."""
        env = {"TENFOLD_OWNER_DATABASE_URL": owner_url}
        env["TENFOLD_SEPARATE_ROLES"] = str(are_separate).lower()
        migration = self._python_child("migrate", ["app.migrate"], env)
        with self.steps.step("Migrating the registry"):
            migration.start()
            try:
                migration.wait_success(MIGRATE_TIMEOUT_S)
            finally:
                migration.stop()

    def _engine_settings(self) -> dict[str, str]:
        config = self.config
        return _set(
            {
                "DEVICE": config.device,
                "DTYPE": config.dtype,
                "BATCH_INVARIANT": config.batch_invariant,
                "THREADS": config.threads,
                "POOL_BYTES": config.pool_bytes,
            }
        )

    def _start_python(self, name: str, module: list[str], env: Mapping[str, str]) -> None:
        self._supervisor.start(self._python_child(name, module, env))

    def _python_child(self, name: str, module: list[str], env: Mapping[str, str]) -> ChildProcess:
        inherited = SHARED_MACHINE | {
            key: value
            for key, value in os.environ.items()
            if key.removeprefix("TENFOLD_") not in CONCERNS
        }
        return ChildProcess(
            ChildSpec(
                name=name,
                argv=(sys.executable, "-m", *module),
                log_path=self._log_path(name),
                pid_path=self.config.data_dir / "run" / f"{name}.pid",
                env={**inherited, "PYTHONUNBUFFERED": "1", **env},
            )
        )

    def _log_path(self, name: str) -> Path:
        return self.config.data_dir / "logs" / f"{name}.log"

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.base_url}/readyz", timeout=2.0, trust_env=False).is_success
        except httpx.TransportError:
            return False


def _set(values: Mapping[str, object]) -> dict[str, str]:
    """`TENFOLD_` variables for what is not None; booleans as 1 and 0."""
    return {
        f"TENFOLD_{name}": str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }
