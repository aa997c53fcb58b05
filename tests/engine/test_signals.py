"""A signal ends a process that waits for a message, whichever of its threads gets the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import signal, threading
from queue import SimpleQueue
from engine.signals import call_on_signals

inbox = SimpleQueue()
{install}
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
inbox.get()
"""
AS_CALLS = "call_on_signals(lambda: inbox.put(None))"
AS_PYTHON_DOES = "signal.signal(signal.SIGTERM, lambda *_: inbox.put(None))"
LONG_S = 1.0


@contextmanager
def waiting(install: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose main thread waits for a message that only a signal brings."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(install=install)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        _until_it_waits(process)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _until_it_waits(process: subprocess.Popen[str]) -> None:
    """Until the main thread sleeps, and has used no time for a while."""
    seen: list[str] = []
    while len(seen) < 5 or len(set(seen[-5:])) > 1:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        state, used = fields[0], fields[11:13]
        seen.append(f"{state} {used}" if state == "S" else f"running {len(seen)}")
        time.sleep(0.02)


def another_thread(process: subprocess.Popen[str]) -> int:
    tasks = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
    return max(task for task in tasks if task != process.pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_process_is_heard(number: signal.Signals) -> None:
    with waiting(AS_CALLS) as process:
        process.send_signal(number)
        assert process.wait(30) == 0


def test_a_signal_that_another_thread_gets_is_heard() -> None:
    with waiting(AS_CALLS) as process:
        os.kill(another_thread(process), signal.SIGTERM)
        assert process.wait(30) == 0


def test_control_a_handler_of_pythons_does_not_hear_what_another_thread_gets() -> None:
    with waiting(AS_PYTHON_DOES) as process:
        os.kill(another_thread(process), signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(LONG_S)
