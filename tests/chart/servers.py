"""Other people's servers as child processes: nginx, HAProxy, PgBouncer, Redis with TLS, Sentinel.

Knows nothing of Tenfold. Invariants: they are Debian's, from the folder of the tools; what was
started has ended when its block does.
"""

from __future__ import annotations

import csv
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import redis

from app.launcher.ports import LOOPBACK, free_port
from tests.builders.waiting import wait_until
from tests.chart.rendering import TOOLS

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
PASSWORD = "of-the-managed-redis"
SERVICE = "tenfold"
NUM_SENTINELS = 3
DOWN_AFTER_MS = 1000


@contextmanager
def running(
    name: str,
    *arguments: str | Path,
    folder: Path,
    is_ready: Callable[[], bool],
    user: str | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """The tool of this name, from when it `is_ready`. `user`: in the place of root."""
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [TOOLS / "bin" / name, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            user=user if os.geteuid() == 0 else None,
        )
    try:
        wait_until(lambda: process.poll() is not None or is_ready(), timeout_s=START_TIMEOUT_S)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def accepts(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


NGINX = """
daemon off;
user root;
worker_processes 1;
pid nginx.pid;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    upstream api {{ server {upstream}; keepalive 16; }}
    server {{
        listen {address};
        location / {{
            proxy_pass http://api;
            {directives}
        }}
    }}
}}
"""


@contextmanager
def nginx(upstream_url: str, directives: Mapping[str, str], folder: Path) -> Iterator[str]:
    """The URL of an nginx in front of `upstream_url`. `directives`: of its one location."""
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(
        NGINX.format(
            upstream=urlsplit(upstream_url).netloc,
            address=f"{LOOPBACK}:{port}",
            directives="\n".join(f"{name} {value};" for name, value in directives.items()),
        )
    )
    arguments = ("-p", folder, "-c", config, "-e", "stderr")
    with running("nginx", *arguments, folder=folder, is_ready=_listening(port)):
        yield f"http://{LOOPBACK}:{port}"


# A pod that is not ready is out within a tenth of a second or two; what was sent to one is never
# sent again, as with any proxy for requests that are not idempotent.
HAPROXY = """
global
    stats socket ipv4@{stats} level user
defaults
    mode http
    timeout connect 5s
    timeout check 3s
    timeout client 120s
    timeout server 120s
    retries 3
    option redispatch
    http-error status 502 content-type application/json string '{{"error":{{"code":"proxy_502"}}}}'
    http-error status 503 content-type application/json string '{{"error":{{"code":"proxy_503"}}}}'
    http-error status 504 content-type application/json string '{{"error":{{"code":"proxy_504"}}}}'
frontend tenants
    bind {address}
    default_backend api
backend api
    balance leastconn
    option httpchk GET {path}
    http-check expect status 200
    default-server inter 100ms fall 1 rise 1
{servers}
"""


@dataclass(frozen=True, slots=True)
class LoadBalancer:
    """`url` leads to whoever is ready."""

    url: str
    stats_port: int

    def num_up(self) -> int:
        """How many servers are ready, as it sees them."""
        with socket.create_connection((LOOPBACK, self.stats_port), timeout=5) as connection:
            connection.sendall(b"show stat\n")
            with connection.makefile("r", encoding="ascii") as answer:
                rows = list(csv.DictReader(line.removeprefix("# ") for line in answer))
        of_servers = [row for row in rows if (row["svname"] or "").startswith("server-")]
        return sum((row["status"] or "").startswith("UP") for row in of_servers)


@contextmanager
def haproxy(upstream_urls: Sequence[str], path: str, folder: Path) -> Iterator[LoadBalancer]:
    """In front of all of them; each is asked at `path` whether it is ready."""
    port, stats_port = free_port(), free_port()
    servers = [
        f"    server server-{number} {urlsplit(url).netloc} check"
        for number, url in enumerate(upstream_urls)
    ]
    config = folder / "haproxy.cfg"
    config.write_text(
        HAPROXY.format(
            stats=f"{LOOPBACK}:{stats_port}",
            address=f"{LOOPBACK}:{port}",
            path=path,
            servers="\n".join(servers),
        )
    )
    balancer = LoadBalancer(f"http://{LOOPBACK}:{port}", stats_port)
    arguments = ("-db", "-f", config)
    with running("haproxy", *arguments, folder=folder, is_ready=_listening(port)):
        wait_until(lambda: balancer.num_up() == len(servers), timeout_s=START_TIMEOUT_S)
        yield balancer


PGBOUNCER = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 200
"""


@contextmanager
def pgbouncer(
    host: str, port: int, passwords: Mapping[str, str], folder: Path, *, pool_size: int
) -> Iterator[int]:
    """The port of a PgBouncer in transaction mode. `passwords` by role; nobody must be able to read
    `folder`. `pool_size`: connections to Postgres, for each role and database."""
    own_port = free_port()
    users = folder / "users.txt"
    users.write_text("".join(f'"{role}" "{password}"\n' for role, password in passwords.items()))
    config = folder / "pgbouncer.ini"
    config.write_text(
        PGBOUNCER.format(host=host, port=port, own_port=own_port, users=users, pool_size=pool_size)
    )
    is_ready = _listening(own_port)
    with running("pgbouncer", config, folder=folder, is_ready=is_ready, user="nobody"):
        yield own_port


@contextmanager
def tls_redis(folder: Path, certificate: Path, key: Path) -> Iterator[int]:
    """The port of a Redis that speaks TLS and nothing else."""
    port = free_port()
    options = ["--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no"]
    options += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    options += ["--tls-ca-cert-file", str(certificate)]  # of clients, who show none
    arguments = (*options, *_habits(folder))
    with running("redis-server", *arguments, folder=folder, is_ready=_listening(port)):
        yield port


def _habits(folder: Path) -> list[str]:
    habits = ["--bind", LOOPBACK, "--requirepass", PASSWORD, "--masterauth", PASSWORD]
    return [*habits, "--save", "", "--maxmemory-policy", "noeviction", "--dir", str(folder)]


@dataclass(frozen=True, slots=True)
class Sentinels:
    """A primary, a replica, and those who watch them."""

    url: str
    """As Tenfold takes it."""
    sentinel_ports: Sequence[int]
    processes: Mapping[int, subprocess.Popen[bytes]]
    """The two servers, by port."""

    def primary(self) -> int:
        """The port of the primary, as the first Sentinel sees it."""
        with _sentinel(self.sentinel_ports[0]) as sentinel:
            return int(sentinel.sentinel_get_master_addr_by_name(SERVICE)[1])

    def fail_over(self) -> None:
        """In order: the primary is demoted, and lives."""
        with _sentinel(self.sentinel_ports[0]) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)

    def kill_primary(self) -> None:
        primary = self.processes[self.primary()]
        primary.kill()
        primary.wait()


@contextmanager
def sentinels(folder: Path) -> Iterator[Sentinels]:
    """A primary and its replica are in step, and every Sentinel knows of both and of each other."""
    with ExitStack() as scope:
        ports = [free_port(), free_port()]
        processes = {}
        for port in ports:
            home = folder / f"redis-{port}"
            home.mkdir()
            options = ["--port", str(port), *_habits(home)]
            if port != ports[0]:
                options += ["--replicaof", LOOPBACK, str(ports[0])]
            processes[port] = scope.enter_context(
                running("redis-server", *options, folder=home, is_ready=_listening(port))
            )
        sentinel_ports = [free_port() for _ in range(NUM_SENTINELS)]
        for port in sentinel_ports:
            home = folder / f"sentinel-{port}"
            home.mkdir()
            config = home / "sentinel.conf"  # it writes what it learns into it
            config.write_text(_sentinel_config(port, ports[0], home))
            scope.enter_context(
                running("redis-sentinel", config, folder=home, is_ready=_listening(port))
            )
        addresses = ",".join(f"{LOOPBACK}:{port}" for port in sentinel_ports)
        url = f"redis+sentinel://:{PASSWORD}@{addresses}/{SERVICE}/0"
        group = Sentinels(url, sentinel_ports, processes)
        wait_until(lambda: all(map(_knows_all, sentinel_ports)), timeout_s=START_TIMEOUT_S)
        yield group


def _sentinel(port: int) -> redis.Redis:
    return redis.Redis(port=port, decode_responses=True, protocol=2)


def _listening(port: int) -> Callable[[], bool]:
    return lambda: accepts(port)


def _sentinel_config(port: int, primary_port: int, home: Path) -> str:
    lines = [
        f"port {port}",
        f"bind {LOOPBACK}",
        f"dir {home}",
        f"sentinel monitor {SERVICE} {LOOPBACK} {primary_port} {NUM_SENTINELS // 2 + 1}",
        f"sentinel auth-pass {SERVICE} {PASSWORD}",
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
        f"sentinel failover-timeout {SERVICE} 5000",
    ]
    return "\n".join(lines) + "\n"


def _knows_all(port: int) -> bool:
    with _sentinel(port) as sentinel:
        state = sentinel.sentinel_masters()[SERVICE]
        replicas = sentinel.sentinel_slaves(SERVICE)
    is_in_step = bool(replicas) and replicas[0]["master-link-status"] == "ok"
    return state["num-other-sentinels"] == NUM_SENTINELS - 1 and is_in_step
