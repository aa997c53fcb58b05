"""A whole installation of processes that can be killed one by one: Valkey, APIs, worker, engines.

Knows nothing of load or verdicts. Postgres is the test run's. Invariant: what was killed is started
again, under a name of its own where it is an engine or an API process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Self

import httpx
import redis

from app.launcher.ports import LOOPBACK, free_port
from app.launcher.valkey import ValkeyServer
from app.settings import Settings
from engine.transport import keys
from tests.builders.operator import OPERATOR
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.waiting import wait_until
from tests.fixtures.processes import running

CHECKOUT = Path(__file__).parents[2]
START_TIMEOUT_S = 90.0
PATIENCE = {"TENFOLD_DEPENDENCY_TIMEOUT_S": "5"}  # a busy machine is no outage of Postgres
WORKER = {"TENFOLD_API_LOST_AFTER_S": "1", "TENFOLD_SWEEP_INTERVAL_S": "0.2"}


class Api:
    """One API process after the other, on the same ports."""

    def __init__(self, settings: Settings, folder: Path, name: str) -> None:
        self._settings = settings
        self._log = folder / f"{name}.log"
        self._port, self._admin_port = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._scope = ExitStack()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def admin_url(self) -> str:
        return f"http://{LOOPBACK}:{self._admin_port}"

    def start(self) -> None:
        ports = {"TENFOLD_PORT": str(self._port), "TENFOLD_ADMIN_PORT": str(self._admin_port)}
        ports |= PATIENCE
        self.process = self._scope.enter_context(
            running("app.serve", self._settings, self._log, ports)
        )
        wait_until(self._answers, timeout_s=START_TIMEOUT_S)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self._scope.close()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/livez").is_success
        except httpx.TransportError:
            return False


class Engine:
    """`command` with a queue and a name; the name is new at each start."""

    def __init__(self, command: Sequence[str], redis_url: str, folder: Path, number: int) -> None:
        self._command = command
        self._redis_url = redis_url
        self._folder = folder
        self._lives = (f"engine-{number}-{life}" for life in count())
        self._process: subprocess.Popen[bytes] | None = None
        self.engine_id = ""

    def launch(self) -> None:
        """Start it, without a wait until it is there."""
        self.engine_id = next(self._lives)
        arguments = [*self._command, "--redis-url", self._redis_url, "--engine-id", self.engine_id]
        with (self._folder / f"{self.engine_id}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=CHECKOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TENFOLD_QUEUE_SECRET": QUEUE_SECRET},
                stdout=log,
                stderr=log,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Stack:
    """`with Stack(...) as stack`: everything answers when the block begins."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        engine_command: Sequence[str],
        *,
        num_engines: int,
        num_apis: int = 1,
    ) -> None:
        folder.mkdir()
        self.valkey = ValkeyServer(
            folder / "valkey", password="of-the-faults", durable=False, port=free_port()
        )
        self._folder = folder
        self._settings = settings
        self._engine_command = engine_command
        self._num = num_engines, num_apis
        self._scope = ExitStack()
        self.engines: list[Engine] = []
        self.apis: list[Api] = []

    def __enter__(self) -> Self:
        with ExitStack() as scope:
            self.valkey.start()
            scope.callback(self.valkey.stop)
            self._settings = self._settings.model_copy(update={"redis_url": self.valkey.url})
            num_engines, num_apis = self._num
            for number in range(num_engines):
                engine = Engine(self._engine_command, self.valkey.url, self._folder, number)
                self.engines.append(engine)
                scope.callback(engine.kill)
                engine.launch()
            log = self._folder / "worker.log"
            scope.enter_context(running("app.worker", self._settings, log, WORKER))
            for number in range(num_apis):
                api = Api(self._settings, self._folder, f"api-{number}")
                self.apis.append(api)
                scope.callback(api.close)
                api.start()
            wait_until(lambda: "worker_listening" in log.read_text(), timeout_s=START_TIMEOUT_S)
            self.wait_for(self.engines)
            self._scope = scope.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.close()

    def urls(self) -> list[str]:
        return [api.url for api in self.apis]

    def new_key(self) -> Mapping[str, str]:
        """A tenant's, as the headers of its calls."""
        with httpx.Client(
            base_url=f"{self.apis[0].admin_url}/admin/v1", headers=OPERATOR, timeout=30
        ) as admin:
            admin.post("/tenants", json={"slug": "acme"}).raise_for_status()
            key = admin.post("/tenants/acme/keys", json={}).raise_for_status().json()
        return {"x-api-key": key["secret"]}

    def wait_for(self, engines: Sequence[Engine]) -> None:
        """Until the queue knows all of them."""
        with redis.Redis.from_url(self.valkey.url, protocol=2) as server:
            beats = [f"{keys.PREFIX}engine:{engine.engine_id}" for engine in engines]
            wait_until(lambda: server.exists(*beats) == len(beats), timeout_s=START_TIMEOUT_S)

    def busiest(self, num: int) -> list[Engine]:
        """The engines with most requests, by their heartbeats."""
        with redis.Redis.from_url(self.valkey.url, protocol=2) as server:
            running = {
                each: int(server.hget(f"{keys.PREFIX}engine:{each.engine_id}", "num_running") or 0)
                for each in self.engines
            }
        return sorted(self.engines, key=lambda each: -running[each])[:num]

    def kill_valkey(self, absent_s: float) -> None:
        """SIGKILL; it comes back on its port, with nothing in it."""
        assert self.valkey.child is not None
        os.kill(self.valkey.child.pid, signal.SIGKILL)
        time.sleep(absent_s)
        self.valkey.stop()
        self.valkey.start()
