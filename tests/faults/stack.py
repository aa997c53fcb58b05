"""A whole installation of processes that can be killed one by one: Valkey, APIs, worker, engines.

Knows nothing of load or verdicts. Postgres is the test run's. Invariant: what was killed is started
again, under a name of its own where it is an engine or an API process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from typing import Any, Self

import httpx
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from app.launcher.ports import LOOPBACK, free_port
from app.launcher.valkey import ValkeyServer
from app.settings import Settings
from engine.transport import keys
from tests.builders.operator import OPERATOR
from tests.builders.waiting import wait_until
from tests.faults.processes import Nursery, Process
from tests.fixtures.processes import STOP_TIMEOUT_S, environment

START_TIMEOUT_S = 90.0
TENANT = "acme"
PATIENCE = {  # a busy machine is no outage of Postgres, nor too many requests
    "TENFOLD_DEPENDENCY_TIMEOUT_S": "5",
    "TENFOLD_MAX_LOOP_LAG_S": "30",
}
WORKER = {"TENFOLD_API_LOST_AFTER_S": "1", "TENFOLD_SWEEP_INTERVAL_S": "0.2"}


class Service:
    """`module` with settings in its environment, one life after the other, all in one log."""

    def __init__(
        self, nursery: Nursery, module: str, settings: Settings, log: Path, extra: Mapping[str, str]
    ) -> None:
        self.log = log
        self._nursery = nursery
        self._module = module
        self._environment = environment(settings, extra)
        self.process: Process | None = None

    def launch(self) -> None:
        """Start it, without a wait until it is there."""
        self.process = self._nursery.start(self._module, [], self._environment, self.log)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """It must end cleanly when it is told to, unless it was killed."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(STOP_TIMEOUT_S) == 0, self.log.read_text()


class Api(Service):
    """One API process after the other, on the same ports."""

    def __init__(
        self,
        nursery: Nursery,
        settings: Settings,
        folder: Path,
        name: str,
        options: Mapping[str, str],
    ) -> None:
        self._port, self._admin_port = free_port(), free_port()
        ports = {"TENFOLD_PORT": str(self._port), "TENFOLD_ADMIN_PORT": str(self._admin_port)}
        told = ports | PATIENCE | options
        super().__init__(nursery, "app.serve", settings, folder / f"{name}.log", told)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def admin_url(self) -> str:
        return f"http://{LOOPBACK}:{self._admin_port}"

    def start(self) -> None:
        """Launch it, and wait until it answers."""
        self.launch()
        wait_until(self.answers, timeout_s=START_TIMEOUT_S)

    def answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log.read_text()
        try:
            connection = HTTPConnection(LOOPBACK, self._port, timeout=5)
            connection.request("GET", "/livez")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


class Engine:
    """`command` with a queue and a name; the name is new at each start."""

    def __init__(
        self,
        nursery: Nursery,
        command: Sequence[str],
        settings: Settings,
        folder: Path,
        number: int,
    ) -> None:
        self._nursery = nursery
        self._command = command
        self._redis_url = settings.redis_url
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TENFOLD_QUEUE_SECRET": settings.queue_secret.get_secret_value(),
        }
        self._folder = folder
        self._lives = (f"engine-{number}-{life}" for life in count())
        self._process: Process | None = None
        self.engine_id = ""

    def last_words(self) -> str:
        logs = sorted(self._folder.glob(f"*{self.engine_id}*"))
        return logs[-1].read_text()[-4000:] if logs else "nothing"

    def launch(self) -> None:
        """Start it, without a wait until it is there."""
        self.engine_id = next(self._lives)
        module, *options = self._command
        options += ["--redis-url", self._redis_url, "--engine-id", self.engine_id]
        log = self._folder / f"{self.engine_id}.log"
        self._process = self._nursery.start(module, options, self._environment, log)

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)


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
        worker_options: Mapping[str, str] | None = None,
        api_options: Mapping[str, str] | None = None,
    ) -> None:
        """worker_options, api_options: their environment, besides the settings."""
        folder.mkdir()
        self._worker_options = WORKER | dict(worker_options or {})
        self._api_options = dict(api_options or {})
        self.valkey = ValkeyServer(
            folder / "valkey", password="of-the-faults", durable=False, port=free_port()
        )
        self._folder = folder
        self._settings = settings
        self._engine_command = engine_command
        self._num = num_engines, num_apis
        self._redis_url = ""  # as it stays while the server is away
        self._scope = ExitStack()
        self.engines: list[Engine] = []
        self.apis: list[Api] = []

    def __enter__(self) -> Self:
        with ExitStack() as scope:
            nursery = Nursery("app.serve", "app.worker", self._engine_command[0])
            scope.enter_context(nursery)
            self.valkey.start()
            scope.callback(self.valkey.stop)
            self._redis_url = self.valkey.url
            settings = self._settings.model_copy(update={"redis_url": self._redis_url})
            num_engines, num_apis = self._num
            for number in range(num_engines):
                engine = Engine(nursery, self._engine_command, settings, self._folder, number)
                self.engines.append(engine)
                scope.callback(engine.kill)
                engine.launch()
            log = self._folder / "worker.log"
            self.worker = Service(nursery, "app.worker", settings, log, self._worker_options)
            scope.callback(self.worker.close)
            self.worker.launch()
            for number in range(num_apis):
                api = Api(nursery, settings, self._folder, f"api-{number}", self._api_options)
                self.apis.append(api)
                scope.callback(api.close)
                api.launch()
            for api in self.apis:
                wait_until(api.answers, timeout_s=START_TIMEOUT_S)
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
        with self._admin() as admin:
            admin.post("/tenants", json={"slug": TENANT}).raise_for_status()
            key = admin.post(f"/tenants/{TENANT}/keys", json={}).raise_for_status().json()
        return {"x-api-key": key["secret"]}

    def new_adapter(self, name: str, files: Mapping[str, bytes]) -> str:
        """Of the tenant that has the key; its digest, when it can be asked."""
        adapters, parts = f"/tenants/{TENANT}/adapters", {k: (k, v) for k, v in files.items()}
        with self._admin() as admin:

            def version() -> dict[str, Any]:
                found = admin.get(f"{adapters}/{name}/versions/v1").raise_for_status().json()
                assert isinstance(found, dict) and found["state"] != "rejected", found
                return found

            admin.post(adapters, json={"name": name}).raise_for_status()
            admin.post(f"{adapters}/{name}/versions", files=parts).raise_for_status()
            wait_until(lambda: version()["state"] == "active", timeout_s=START_TIMEOUT_S)
            return str(version()["digest"])

    def _admin(self) -> httpx.Client:
        url = f"{self.apis[0].admin_url}/admin/v1"
        return httpx.Client(base_url=url, headers=OPERATOR, timeout=30)

    def wait_for(self, engines: Sequence[Engine]) -> None:
        """Until the queue knows all of them, as they are called by then."""
        with self._queue() as server:

            def num_known() -> int:
                beats = [f"{keys.PREFIX}engine:{engine.engine_id}" for engine in engines]
                return int(server.exists(*beats))

            try:
                wait_until(lambda: num_known() == len(engines), timeout_s=START_TIMEOUT_S)
            except AssertionError as error:
                said = {each.engine_id: each.last_words() for each in engines}
                raise AssertionError(f"of {len(engines)} engines {num_known()}: {said}") from error

    def busiest(self, num: int) -> list[Engine]:
        """The engines with most requests, by their heartbeats."""
        with self._queue() as server:
            running = {
                each: int(server.hget(f"{keys.PREFIX}engine:{each.engine_id}", "num_running") or 0)
                for each in self.engines
            }
        return sorted(self.engines, key=lambda each: -running[each])[:num]

    def num_leased(self, engine: Engine) -> int:
        """How many requests an engine has, by the queue's own books."""
        with self._queue() as server:
            leases = server.hvals(keys.LEASES)
        return sum(lease.endswith(f":{engine.engine_id}".encode()) for lease in leases)

    def wait_for_ledger(self) -> None:
        """Until all that was said of requests that ended is written down."""
        with self._queue() as server:
            wait_until(lambda: server.xlen(keys.USAGE) == 0, timeout_s=START_TIMEOUT_S)

    def _queue(self) -> redis.Redis:
        """Patient: others may have killed it just now."""
        patience = Retry(ConstantBackoff(0.05), retries=200)
        return redis.Redis.from_url(self._redis_url, protocol=2, retry=patience)

    def kill_valkey(self, absent_s: float) -> None:
        """SIGKILL; it comes back on its port, with nothing in it."""
        assert self.valkey.child is not None
        os.kill(self.valkey.child.pid, signal.SIGKILL)
        time.sleep(absent_s)
        self.valkey.stop()
        self.valkey.start()
