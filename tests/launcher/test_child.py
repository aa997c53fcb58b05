"""One child: its log, its end, and that it does not outlive the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.launcher.child import ChildProcess, ChildSpec
from app.launcher.errors import ChildExitedError, ChildNotReadyError
from tests.builders.waiting import wait_until

CHECKOUT = Path(__file__).parents[2]
IGNORES_SIGTERM = "trap '' TERM; echo up; while :; do sleep 0.1; done"


def shell(folder: Path, script: str, grace_s: float = 10.0) -> ChildProcess:
    return ChildProcess(
        ChildSpec(
            name="child",
            argv=("/bin/sh", "-c", script),
            log_path=folder / "logs" / "child.log",
            pid_path=folder / "run" / "child.pid",
            env={"PATH": os.environ["PATH"]},
            grace_s=grace_s,
        )
    )


def test_a_child_that_ends_early_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    child = shell(tmp_path, "echo first; echo 'no such table' >&2; exit 3")
    child.start()
    with pytest.raises(ChildExitedError, match=r"child ended .*exit status 3") as caught:
        child.wait_ready(lambda: False, timeout_s=20)
    assert caught.value.log_tail == ["first", "no such table"]
    child.stop()


def test_the_last_lines_are_of_this_run_only(tmp_path: Path) -> None:
    for text in ("old", "new"):
        child = shell(tmp_path, f"echo {text}")
        child.start()
        child.wait_success(timeout_s=20)
        assert child.log_tail() == [text]
        child.stop()


def test_a_child_that_is_not_ready_in_time_is_reported(tmp_path: Path) -> None:
    child = shell(tmp_path, "echo still loading; sleep 60")
    child.start()
    with pytest.raises(ChildNotReadyError, match="not ready within"):
        child.wait_ready(lambda: False, timeout_s=0.3)
    child.stop()


def test_a_child_that_ignores_the_request_to_stop_is_killed(tmp_path: Path) -> None:
    child = shell(tmp_path, IGNORES_SIGTERM, grace_s=0.2)
    child.start()
    child.wait_ready(lambda: child.log_tail() == ["up"], timeout_s=20)
    pid = child.pid
    child.stop()
    assert not psutil.pid_exists(pid)
    assert not child.spec.pid_path.exists()
    child.stop()


def test_what_the_child_started_ends_with_it(tmp_path: Path) -> None:
    child = shell(tmp_path, "sleep 60 & echo $!; wait")
    child.start()
    child.wait_ready(lambda: len(child.log_tail()) == 1, timeout_s=20)
    grandchild = psutil.Process(int(child.log_tail()[0]))
    child.stop()
    wait_until(lambda: not _lives(grandchild))


def test_a_child_does_not_outlive_a_killed_launcher(tmp_path: Path) -> None:
    launcher = _launcher(tmp_path, "time.sleep(60)")
    pid_path = tmp_path / "run" / "child.pid"
    wait_until(lambda: pid_path.exists() and pid_path.read_text().endswith("\n"))
    child = psutil.Process(int(pid_path.read_text().split()[0]))
    wait_until(lambda: child.cmdline()[:1] == ["/bin/sh"])
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not _lives(child))


def test_a_start_ends_what_a_killed_launcher_left(tmp_path: Path) -> None:
    first = shell(tmp_path, "echo up; exec sleep 60")
    first.start()
    orphan = psutil.Process(first.pid)
    second = shell(tmp_path, "echo up; exec sleep 60")
    # A zombie of ours stands for one that init would have collected.
    second.start()
    assert not _lives(orphan)
    second.stop()
    first.stop()


def test_a_pid_that_now_belongs_to_a_stranger_is_left_alone(tmp_path: Path) -> None:
    child = shell(tmp_path, "echo up")
    child.spec.pid_path.parent.mkdir()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        child.spec.pid_path.write_text(f"{stranger.pid} 12345\n")
        child.start()
        assert stranger.poll() is None
        stranger.kill()
    child.stop()


@pytest.mark.parametrize("content", ["", "garbage", "1 2 3"])
def test_a_broken_pid_file_is_repaired(tmp_path: Path, content: str) -> None:
    child = shell(tmp_path, "exec sleep 60")
    child.spec.pid_path.parent.mkdir()
    child.spec.pid_path.write_text(content)
    child.start()
    assert child.spec.pid_path.read_text().startswith(f"{child.pid} ")
    child.stop()


def _launcher(folder: Path, then: str) -> subprocess.Popen[bytes]:
    """Another process that starts a child which would run for a minute, then runs `then`."""
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from app.launcher.child import ChildProcess, ChildSpec\n"
        "folder = Path(sys.argv[1])\n"
        "ChildProcess(ChildSpec(name='child', argv=('/bin/sh', '-c', 'echo; sleep 60'),\n"
        "    log_path=folder / 'log', pid_path=folder / 'run' / 'child.pid',\n"
        "    env=dict(os.environ))).start()\n"
    )
    return subprocess.Popen([sys.executable, "-c", script + then, folder], cwd=CHECKOUT)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
