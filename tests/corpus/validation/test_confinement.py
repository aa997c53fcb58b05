"""A validator's child can do nothing but read two files and answer, and never outlives its limits.

The children of these tests do on purpose what a bug, or an attacker inside, would do.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from app.adapters.syscall_filter import is_supported
from app.adapters.validation_messages import Answer, Task
from app.adapters.validator import ZYGOTE, Validator, ValidatorError
from lora.limits import DEFAULT_LIMITS
from tests.builders.adapters import TINY_BASE, lora_tensors, plain_config, write_adapter
from tests.builders.waiting import until

MISBEHAVING = "tests.corpus.validation.misbehaving"
UNFILTERED = "tests.corpus.validation.unfiltered"
FORBIDDEN = {
    "socket": "socket.__new__",
    "resolve": "socket.getaddrinfo",
    "spawn": "subprocess.Popen",
    "fork": "os.fork",
    "exec": "os.exec",
    "system": "os.system",
    "import": "import",
    "import by name": "open",
    "unpickle": "pickle.find_class",
    "evaluate": "compile",
    "read": "open",
    "write": "open",
    "list": "os.listdir",
    "remove": "os.remove",
    "kill": "os.kill",
    "ctypes": "ctypes.dlopen",
}

RAW = ("raw socket", "raw execve", "raw kill", "raw openat", "raw prlimit64")
needs_filter = pytest.mark.skipif(not is_supported(), reason="this kernel filters no calls")


def task_of(folder: Path, *, cpu_s: int = 20) -> Task:
    return Task(
        folder=str(folder), base=TINY_BASE, limits=DEFAULT_LIMITS, reads_values=True, cpu_s=cpu_s
    )


@pytest.fixture(scope="module")
def astray() -> Validator:
    """Of most tests here: it starts once."""
    return Validator(zygote=MISBEHAVING)


async def answer_to(validator: Validator, tmp_path: Path, act: str, *, cpu_s: int = 20) -> Answer:
    write_adapter(tmp_path / act, lora_tensors())
    return await validator.run(task_of(tmp_path / act, cpu_s=cpu_s))


@pytest.mark.parametrize(("act", "event"), FORBIDDEN.items())
async def test_a_child_can_neither_connect_nor_start_nor_import_nor_look_around(
    astray: Validator, tmp_path: Path, act: str, event: str
) -> None:
    answer = await answer_to(astray, tmp_path, act)
    [found] = answer.findings
    assert found.code == "forbidden"
    assert found.message.startswith(f"{event} is forbidden here")


@needs_filter
async def test_native_code_that_asks_the_kernel_past_the_audit_hook_is_denied(
    astray: Validator, tmp_path: Path
) -> None:
    for act in RAW:
        answer = await answer_to(astray, tmp_path, act)
        [found] = answer.findings
        assert (found.code, found.message) == ("denied", act.removeprefix("raw "))
        assert answer.is_filtered


async def test_control_without_the_filter_the_kernel_does_it_and_the_log_says_so(
    tmp_path: Path,
) -> None:
    unfiltered = Validator(zygote=UNFILTERED)
    for act in RAW:
        if act == "raw execve":
            with pytest.raises(ValidatorError, match="ended with 0"):  # it became `true`
                await answer_to(unfiltered, tmp_path, act)
            continue
        with capture_logs() as logs:
            answer = await answer_to(unfiltered, tmp_path, act)
        [found] = answer.findings
        assert (found.code, found.message) == ("done", act)
        assert not answer.is_filtered
        assert [line["event"] for line in logs] == ["validator_unfiltered"]
    [heard] = (await answer_to(unfiltered, tmp_path, "socket")).findings
    assert heard.code == "forbidden"  # the audit hook is there without it


async def test_control_a_child_that_does_nothing_is_heard(
    astray: Validator, tmp_path: Path
) -> None:
    answer = await answer_to(astray, tmp_path, "nothing")
    assert [(found.code, found.message) for found in answer.findings] == [("done", "nothing")]
    assert answer.is_accepted and answer.summary is not None


@pytest.mark.parametrize(
    ("act", "limit"), [("memory", "memory"), ("spin", "time"), ("wait", "time")]
)
async def test_a_child_that_takes_too_much_is_ended_and_its_adapter_refused(
    astray: Validator, tmp_path: Path, act: str, limit: str
) -> None:
    began_at = time.monotonic()
    answer = await answer_to(astray, tmp_path, act, cpu_s=1)
    assert [(found.code, found.severity) for found in answer.findings] == [
        ("validation_limits_exceeded", "error")
    ]
    assert f"{limit} than is allowed" in answer.findings[0].message
    assert time.monotonic() - began_at < 30


@pytest.mark.parametrize("act", ["exit"])
async def test_a_child_that_ends_by_itself_is_our_own_failure(
    astray: Validator, tmp_path: Path, act: str
) -> None:
    with pytest.raises(ValidatorError, match="ended with 3"):
        await answer_to(astray, tmp_path, act)


async def test_nothing_of_the_parents_environment_reaches_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENFOLD_KEY_PEPPER", "a-secret-of-the-parent")
    write_adapter(tmp_path / "wait", lora_tensors())
    validator = Validator(zygote=MISBEHAVING)
    running = asyncio.create_task(validator.run(task_of(tmp_path / "wait", cpu_s=2)))
    child = await _worker()
    environment = child.environ()
    assert "PATH" in environment
    assert not [name for name in environment if name.startswith("TENFOLD_")]
    assert (await running).findings[0].code == "validation_limits_exceeded"


async def test_whoever_asks_no_more_leaves_no_child(tmp_path: Path) -> None:
    write_adapter(tmp_path / "wait", lora_tensors())
    validator = Validator(zygote=MISBEHAVING)
    running = asyncio.create_task(validator.run(task_of(tmp_path / "wait")))
    child = await _worker()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def test_more_than_a_few_children_wait_for_their_turn(tmp_path: Path) -> None:
    write_adapter(tmp_path / "wait", lora_tensors())
    validator = Validator(max_children=2, zygote=MISBEHAVING)
    running = [asyncio.create_task(validator.run(task_of(tmp_path / "wait"))) for _ in range(4)]
    await until(lambda: len(_workers()) == 2)
    first = set(_workers())
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert set(_workers()) == first
    for task in running[:2]:
        task.cancel()
    await until(lambda: len(_workers()) == 2 and first.isdisjoint(_workers()))
    for task in running[2:]:
        task.cancel()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 4


async def test_a_pattern_that_would_take_for_ever_is_answered(tmp_path: Path) -> None:
    """Patterns are RE2's: time is linear in what they are matched with, whatever they are."""
    config = plain_config(target_modules=r"(.*)*(.*)*(.*)*(.*)*(.*)*(.*)*[qv]_proj$")
    write_adapter(tmp_path / "adapter", lora_tensors(), config)
    answer = await Validator().run(task_of(tmp_path / "adapter"))
    assert answer.findings == () or not answer.is_accepted


async def _worker() -> psutil.Process:
    await until(lambda: bool(_workers()))
    return _workers()[0]


def _workers() -> list[psutil.Process]:
    """The youngest generation: this process, a zygote, a keeper for each of them."""
    zygotes = [
        each
        for each in psutil.Process().children()
        if any(name in each.cmdline() for name in (ZYGOTE, MISBEHAVING))
    ]
    keepers = [each for zygote in zygotes for each in zygote.children()]
    return [each for keeper in keepers for each in _children(keeper)]


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []
