"""Servers, one API process, one worker and one stub engine, on this machine, for one bench.

For what lies between clients and a model: the stub engine has the engine's own scheduler, pages and
transport, and sleeps where a model would compute. Runs from a checkout, since that engine lives in
`tests/`. Knows nothing of load. Invariant: nothing of it outlives the block.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx
import redis

from app.launcher.ports import LOOPBACK, free_port
from app.launcher.postgres import PostgresServer
from app.launcher.valkey import ValkeyServer
from app.migrate import migrate
from engine.transport import keys

CHECKOUT = Path(__file__).parents[1]
MODEL_ID = "tenfold-test/Tiny-Llama"
START_TIMEOUT_S = 60.0
WRITE_BASE = (
    "import sys; from pathlib import Path; from tests.builders.tiny_base import write_tiny_base; "
    "write_tiny_base(Path(sys.argv[1]))"
)


class LocalStack:
    """`with LocalStack(folder, engine=["--step-ms", "20"]) as stack`: it answers from then on."""

    def __init__(
        self, folder: Path, *, engine: Sequence[str], settings: Mapping[str, str] | None = None
    ) -> None:
        """engine: options of `python -m tests.stub_engine`. settings: more for the API's
        environment."""
        self._folder = folder
        self._engine = engine
        self._settings = settings or {}
        self._admin_key = secrets.token_hex(16)
        self._ports = free_port(), free_port()
        self._scope = ExitStack()
        self.redis_url = ""

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._ports[0]}"

    def __enter__(self) -> Self:
        with ExitStack() as scope:
            postgres = scope.enter_context(PostgresServer(self._folder / "postgres", durable=True))
            valkey = scope.enter_context(
                ValkeyServer(self._folder / "valkey", password=secrets.token_hex(8), durable=False)
            )
            migrate(postgres.admin_url)
            self.redis_url = valkey.url
            base = self._folder / "base"
            subprocess.run([sys.executable, "-c", WRITE_BASE, str(base)], cwd=CHECKOUT, check=True)
            environment = self._environment(postgres.app_url(), base)
            stub = ["tests.stub_engine", "--redis-url", valkey.url, "--model", str(base)]
            for command in (["app.worker"], ["app.serve"], [*stub, *self._engine]):
                self._start(scope, command, environment)
            _wait_for(self._is_ready)
            self._scope = scope.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.close()

    def new_tenant(self, slug: str, **fields: object) -> str:
        """A tenant's new key."""
        path = f"http://{LOOPBACK}:{self._ports[1]}/admin/v1/tenants"
        headers = {"authorization": f"Bearer {self._admin_key}"}
        with httpx.Client(headers=headers, timeout=30) as admin:
            admin.post(path, json={"slug": slug, **fields}).raise_for_status()
            key = admin.post(f"{path}/{slug}/keys", json={}).raise_for_status().json()
        return str(key["secret"])

    def _environment(self, database_url: str, base: Path) -> dict[str, str]:
        kept = {name: v for name, v in os.environ.items() if not name.startswith("TENFOLD_")}
        return {
            **kept,
            "TENFOLD_DATABASE_URL": database_url,
            "TENFOLD_REDIS_URL": self.redis_url,
            "TENFOLD_MODEL": str(base),
            "TENFOLD_ADAPTER_STORE": str(self._folder / "store"),
            "TENFOLD_DATA_DIR": str(self._folder / "data"),
            "TENFOLD_KEY_PEPPER": secrets.token_hex(16),
            "TENFOLD_QUEUE_SECRET": secrets.token_hex(16),
            "TENFOLD_ADMIN_KEY": self._admin_key,
            "TENFOLD_PORT": str(self._ports[0]),
            "TENFOLD_ADMIN_PORT": str(self._ports[1]),
            **self._settings,
        }

    def _start(
        self, scope: ExitStack, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        log = scope.enter_context((self._folder / f"{command[0]}.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=CHECKOUT, env=environment, stdout=log, stderr=log
        )
        scope.callback(_end, process)

    def _is_ready(self) -> bool:
        try:
            if not httpx.get(f"{self.url}/livez").is_success:
                return False
        except httpx.TransportError:
            return False
        with redis.Redis.from_url(self.redis_url, protocol=2) as server:
            return bool(server.scard(f"{keys.PREFIX}engines"))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError("the stack did not come up")
        time.sleep(0.05)  # outside of what is measured
