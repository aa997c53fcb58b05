"""From nothing to the first heartbeat: `python -m tests.stub_engine.boot` measures it.

Starts a server of its own, then one process after the other. Says what it was meant to be first.
"""

from __future__ import annotations

import os
import resource
import secrets
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from app.launcher.valkey import ValkeyServer
from engine.transport import keys
from tests.builders.queue_secret import QUEUE_SECRET

NUM_BOOTS = 7
AIM_MS = 300
POLL_S = 0.002
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
} | {"TENFOLD_QUEUE_SECRET": QUEUE_SECRET}


def boot_ms(redis_url: str, engine_id: str) -> tuple[float, float]:
    """Milliseconds until the queue knows of it: of the clock, and of a core."""
    began_at, before_s = time.perf_counter(), cpu_s()
    command = [sys.executable, "-m", "tests.stub_engine", "--redis-url", redis_url]
    process = subprocess.Popen(
        [*command, "--engine-id", engine_id], env=ENVIRONMENT, stdout=subprocess.DEVNULL
    )
    try:
        with redis.Redis.from_url(redis_url, protocol=2) as server:
            while not server.exists(f"{keys.PREFIX}engine:{engine_id}"):
                time.sleep(POLL_S)
        wall_s = time.perf_counter() - began_at
    finally:
        process.kill()
        process.wait()
    return wall_s * 1e3, (cpu_s() - before_s) * 1e3


def cpu_s() -> float:
    """What the processes that have ended took."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    say = sys.stdout.write
    say(f"predicted: below {AIM_MS} ms on an idle machine\n")
    with (
        TemporaryDirectory() as folder,
        ValkeyServer(Path(folder), password=secrets.token_hex(8), durable=False) as server,
    ):
        boot_ms(server.url, "warm")  # writes bytecode
        times = [boot_ms(server.url, f"boot-{number}") for number in range(NUM_BOOTS)]
    wall, cpu = ([each[index] for each in times] for index in (0, 1))
    say("wall ms: " + " ".join(f"{each:.0f}" for each in wall) + "\n")
    say("core ms: " + " ".join(f"{each:.0f}" for each in cpu) + "\n")
    say(
        f"boot: best {min(wall):.0f} ms, median {statistics.median(wall):.0f} ms, "
        f"of a core {statistics.median(cpu):.0f} ms\n"
    )


if __name__ == "__main__":
    main()
