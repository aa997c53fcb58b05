"""Other people's servers as child processes: nginx, HAProxy, PgBouncer.

Those of Redis: `tests.chart.redis_servers`.

Knows nothing of Tenfold. Invariants: they are Debian's, from the folder of the tools; what was
started has ended when its block does.
"""

from __future__ import annotations

import csv
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from app.launcher.ports import LOOPBACK, free_port
from tests.builders.waiting import wait_until
from tests.chart.patience import START_S, STOP_S
from tests.chart.rendering import TOOLS
from tests.chart.tooling import need


@contextmanager
def running(
    name: str,
    *arguments: str | Path,
    folder: Path,
    is_ready: Callable[[], bool],
    user: str | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """The tool of this name, from when it `is_ready`. `user`: in the place of root."""
    need("servers")
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
        wait_until(lambda: process.poll() is not None or is_ready(), timeout_s=START_S)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
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


def listening(port: int) -> Callable[[], bool]:
    """A question: whether somebody listens there by now."""
    return lambda: accepts(port)


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
    with running("nginx", *arguments, folder=folder, is_ready=listening(port)):
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
    with running("haproxy", *arguments, folder=folder, is_ready=listening(port)):
        wait_until(lambda: balancer.num_up() == len(servers), timeout_s=START_S)
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
    is_ready = listening(own_port)
    with running("pgbouncer", config, folder=folder, is_ready=is_ready, user="nobody"):
        yield own_port
