"""A set of processes ends together: on a crash, on a request, and on a second request."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from app.launcher.child import ChildProcess, ChildSpec
from app.launcher.errors import ChildExitedError, LauncherError
from app.launcher.signals import StopRequested, stop_on_signals
from app.launcher.supervisor import Supervisor

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
STAYS = "echo up; exec sleep 60"


def child(folder: Path, name: str, script: str) -> ChildProcess:
    return ChildProcess(
        ChildSpec(
            name=name,
            argv=("/bin/sh", "-c", script),
            log_path=folder / f"{name}.log",
            pid_path=folder / f"{name}.pid",
            env={"PATH": os.environ["PATH"]},
            grace_s=30.0,
        )
    )


def test_a_crash_of_one_is_reported_and_stops_the_rest(tmp_path: Path) -> None:
    supervisor = Supervisor()
    first, second = child(tmp_path, "first", STAYS), child(tmp_path, "second", STAYS)
    supervisor.start(first)
    supervisor.start(second)
    supervisor.start(child(tmp_path, "third", "echo out of memory; exit 9"))
    pids = [first.pid, second.pid]
    with pytest.raises(ChildExitedError, match=r"third ended (?s:.*)out of memory"):
        supervisor.watch()
    supervisor.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_they_stop_newest_first(tmp_path: Path) -> None:
    supervisor = Supervisor()
    order = tmp_path / "order"
    for name in ("old", "new"):
        script = f"trap 'echo {name} >> {order}; exit' TERM; echo up; while :; do sleep 0.05; done"
        process = child(tmp_path, name, script)
        supervisor.start(process)
        process.wait_ready(lambda process=process: process.log_tail() == ["up"], timeout_s=20)
    supervisor.stop()
    assert order.read_text().split() == ["new", "old"]


def test_waiting_for_one_notices_that_another_ended(tmp_path: Path) -> None:
    supervisor = Supervisor()
    supervisor.start(child(tmp_path, "first", "exit 1"))
    with pytest.raises(ChildExitedError):
        supervisor.wait_until(lambda: False, timeout_s=20, what="the API")
    supervisor.stop()


def test_waiting_has_a_deadline(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="the API was not ready within"):
        Supervisor().wait_until(lambda: False, timeout_s=0.2, what="the API")


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_ends_the_watch(signum: signal.Signals) -> None:
    before = signal.signal(signum, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        with stop_on_signals():
            with pytest.raises(StopRequested):
                os.kill(os.getpid(), signum)
            os.kill(os.getpid(), signum)  # the same, forwarded by a parent at the same moment
        assert signal.getsignal(signum) is signal.SIG_DFL
    finally:
        signal.signal(signum, before)


def test_a_hang_up_that_nohup_ignores_stays_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_request_while_stopping_kills_the_one_that_is_waited_for(tmp_path: Path) -> None:
    supervisor = Supervisor()
    parent = os.getpid()
    stubborn = f"trap 'kill -INT {parent}' TERM; echo up; while :; do sleep 0.05; done"
    orderly, process = child(tmp_path, "orderly", STAYS), child(tmp_path, "stubborn", stubborn)
    supervisor.start(orderly)
    supervisor.start(process)
    process.wait_ready(lambda: process.log_tail() == ["up"], timeout_s=20)
    pids = [orderly.pid, process.pid]
    with stop_on_signals():
        supervisor.stop()  # far sooner than the grace of 30 s
    assert not any(psutil.pid_exists(pid) for pid in pids)
