"""Redis as others run it, as child processes: with TLS, and watched by Sentinel, TLS there or not.

Knows nothing of Tenfold but the shape of its URLs. Invariant: what was started has ended when its
block does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from app.launcher.ports import LOOPBACK, free_port
from tests.builders.waiting import wait_until
from tests.chart.certificates import Authority, Certificate
from tests.chart.patience import START_S
from tests.chart.servers import listening, running

PASSWORD = "of-the-managed-redis"
SENTINEL_PASSWORD = "of-those-who-watch"
SERVICE = "tenfold"
NUM_SENTINELS = 3
DOWN_AFTER_MS = 1000
BOTH_LOOPBACKS = (LOOPBACK, "-::1")  # to either of which a host's name may lead

Directives = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tls:
    """What a server shows, the one host that it is good for, and whom the server trusts itself."""

    host: str
    certificate: Certificate
    authority: Authority

    def directives(self, port: int) -> Directives:
        """Of a server that speaks nothing else on this port, also to those whom it follows."""
        return {
            "port": "0",
            "tls-port": str(port),
            "tls-auth-clients": "no",
            "tls-replication": "yes",
            "tls-cert-file": str(self.certificate.path),
            "tls-key-file": str(self.certificate.key),
            "tls-ca-cert-file": str(self.authority.path),
        }


@contextmanager
def tls_redis(folder: Path, tls: Tls) -> Iterator[int]:
    """The port of a Redis that speaks TLS and nothing else."""
    port = free_port()
    with _redis(folder, tls.directives(port), port):
        yield port


@dataclass(frozen=True, slots=True)
class Sentinels:
    """A primary, a replica, and those who watch them."""

    sentinel_ports: Sequence[int]
    processes: Mapping[int, subprocess.Popen[bytes]]
    """The two servers, by port."""
    tls: Tls | None = None

    @property
    def url(self) -> str:
        """As Tenfold takes it; under TLS it is told whom to trust, and Sentinel's password."""
        if self.tls is None:
            return self.url_at(LOOPBACK)
        trusted = f"ssl_ca_certs={self.tls.authority.path}&sentinel_password={SENTINEL_PASSWORD}"
        return f"{self.url_at(self.tls.host)}?{trusted}"

    def url_at(self, host: str) -> str:
        scheme = "redis+sentinel" if self.tls is None else "rediss+sentinel"
        addresses = ",".join(f"{host}:{port}" for port in self.sentinel_ports)
        return f"{scheme}://:{PASSWORD}@{addresses}/{SERVICE}/0"

    def primary(self) -> int:
        """The port of the primary, as the first Sentinel sees it."""
        with _sentinel(self.sentinel_ports[0], self.tls) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(SERVICE)[1])

    def fail_over(self) -> None:
        """In order: the primary is demoted, and lives."""
        with _sentinel(self.sentinel_ports[0], self.tls) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)

    def kill_primary(self) -> None:
        primary = self.processes[self.primary()]
        primary.kill()
        primary.wait()


@contextmanager
def sentinels(folder: Path, tls: Tls | None = None) -> Iterator[Sentinels]:
    """A primary and its replica are in step, and every Sentinel knows of both and of each other.

    tls: of all of them; they call each other by its host's name then.
    """
    host = LOOPBACK if tls is None else tls.host
    with ExitStack() as scope:
        ports = [free_port(), free_port()]
        processes = {}
        for port in ports:
            own = {"port": str(port)} if tls is None else tls.directives(port)
            own = {**own, "replica-announce-ip": host}
            if port != ports[0]:
                own["replicaof"] = f"{host} {ports[0]}"
            home = folder / f"redis-{port}"
            home.mkdir()
            processes[port] = scope.enter_context(_redis(home, own, port))
        sentinel_ports = [free_port() for _ in range(NUM_SENTINELS)]
        for port in sentinel_ports:
            home = folder / f"sentinel-{port}"
            home.mkdir()
            config = home / "sentinel.conf"  # it writes what it learns into it
            config.write_text(_sentinel_config(port, ports[0], home, tls))
            scope.enter_context(
                running("redis-sentinel", config, folder=home, is_ready=listening(port))
            )
        wait_until(
            lambda: all(_knows_all(port, tls) for port in sentinel_ports),
            timeout_s=START_S,
        )
        yield Sentinels(sentinel_ports, processes, tls)


@contextmanager
def _redis(folder: Path, own: Directives, port: int) -> Iterator[subprocess.Popen[bytes]]:
    directives = {
        **own,
        "bind": " ".join(BOTH_LOOPBACKS),
        "requirepass": PASSWORD,
        "masterauth": PASSWORD,
        "save": '""',
        "maxmemory-policy": "noeviction",
        "dir": str(folder),
    }
    config = folder / "redis.conf"
    config.write_text("".join(f"{name} {value}\n" for name, value in directives.items()))
    with running("redis-server", config, folder=folder, is_ready=listening(port)) as process:
        yield process


def _sentinel(port: int, tls: Tls | None) -> redis.Redis:
    if tls is None:
        return redis.Redis(port=port, decode_responses=True, protocol=2)
    return redis.Redis(
        host=tls.host,
        port=port,
        password=SENTINEL_PASSWORD,
        ssl=True,
        ssl_ca_certs=str(tls.authority.path),
        decode_responses=True,
        protocol=2,
    )


def _sentinel_config(port: int, primary_port: int, home: Path, tls: Tls | None) -> str:
    host = LOOPBACK
    lines = [f"port {port}"]
    if tls is not None:
        host = tls.host
        lines = [f"{name} {value}" for name, value in tls.directives(port).items()]
        lines += ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"]
        lines += [f"requirepass {SENTINEL_PASSWORD}", f"sentinel sentinel-pass {SENTINEL_PASSWORD}"]
    lines += [
        f"bind {' '.join(BOTH_LOOPBACKS)}",
        f"dir {home}",
        f"sentinel monitor {SERVICE} {host} {primary_port} {NUM_SENTINELS // 2 + 1}",
        f"sentinel auth-pass {SERVICE} {PASSWORD}",
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
        f"sentinel failover-timeout {SERVICE} 5000",
    ]
    return "\n".join(lines) + "\n"


def _knows_all(port: int, tls: Tls | None) -> bool:
    with _sentinel(port, tls) as sentinel:
        state = sentinel.sentinel_masters()[SERVICE]
        replicas = sentinel.sentinel_slaves(SERVICE)
    is_in_step = bool(replicas) and replicas[0]["master-link-status"] == "ok"
    return state["num-other-sentinels"] == NUM_SENTINELS - 1 and is_in_step
