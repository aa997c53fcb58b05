"""`tenfold doctor` finds what is broken, says what to do, and shows no secret."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from app.doctor.findings import Finding, is_well, lines
from app.doctor.machine import look_at_machine
from app.doctor.queue import look_at_queue
from app.doctor.registry import look_at_registry
from app.doctor.service import examine
from app.doctor.settings import DoctorSettings, environment_of_local
from app.launcher.orphans import process_started_at
from app.launcher.valkey import ValkeyServer
from app.settings import Settings
from tests.builders.operator import ADMIN_KEY
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_engine import StubEngine
from tests.fixtures.servers import TestDatabase

CHECKOUT = Path(__file__).parents[2]


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {each.check: each for each in findings}


def of_registry(url: str | None) -> dict[str, Finding]:
    return by_check(asyncio.run(look_at_registry(url, pool_size=20)))


def of_queue(url: str | None, secret: str | None = QUEUE_SECRET) -> dict[str, Finding]:
    return by_check(asyncio.run(look_at_queue(url, secret, max_usage_backlog=10)))


def test_a_sound_installation_is_well(settings: Settings) -> None:
    told = DoctorSettings(
        database_url=settings.database_url,
        redis_url=settings.redis_url,
        queue_secret=settings.queue_secret,
        key_pepper=settings.key_pepper,
        admin_key=SecretStr(ADMIN_KEY),
        model=settings.model,
        adapter_store=settings.adapter_store,
        data_dir=settings.data_dir,
    )
    Path(settings.adapter_store).mkdir()
    with StubEngine(settings.redis_url):
        findings = asyncio.run(examine(told))
    assert [each for each in findings if each.status == "fail"] == []
    found = by_check(findings)
    for check in ("postgres", "role", "migrations", "row-level-security", "redis", "engines"):
        assert found[check].status == "ok", found[check]
    # The tests' own server keeps nothing on disk, and their base has no weights.
    assert found["redis-persistence"].status == found["weights"].status == "warn"
    shown = "\n".join(lines(findings))
    for secret in (QUEUE_SECRET, ADMIN_KEY, "pepper-of-the-tests"):
        assert secret not in shown


def test_a_superuser_and_a_schema_that_is_not_there_fail(
    database: TestDatabase, empty_database: TestDatabase
) -> None:
    assert of_registry(database.app_url)["role"].status == "ok"
    assert of_registry(database.owner_url)["role"].status == "fail"
    assert "tenfold migrate" in of_registry(empty_database.owner_url)["migrations"].todo


@pytest.mark.parametrize(
    "url", [None, "not a url", "postgresql+asyncpg://tenfold_app:hush@127.0.0.1:1/none"]
)
def test_a_registry_that_cannot_be_reached_is_one_finding(url: str | None) -> None:
    (found,) = of_registry(url).values()
    assert (found.check, found.status) == ("postgres", "fail") and found.todo
    assert "hush" not in found.detail


@pytest.fixture
def evicting(valkey: ValkeyServer, redis_url: str) -> Iterator[str]:
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        yield redis_url
        client.config_set("maxmemory-policy", "noeviction")


def test_a_redis_that_evicts_fails(evicting: str) -> None:
    found = of_queue(evicting)
    assert found["redis-eviction"].status == "fail"
    assert found["redis"].status == "ok" and found["engines"].status == "warn"


def test_records_that_no_worker_reads_are_found(redis_url: str) -> None:
    assert of_queue(redis_url)["ledger"].status == "ok"
    with redis.Redis.from_url(redis_url) as client:
        for _ in range(11):
            client.xadd("{tenfold}:usage", {"record": b"x"})
    assert of_queue(redis_url)["ledger"].status == "fail"


def test_a_redis_that_cannot_be_reached_is_one_finding() -> None:
    (found,) = of_queue("redis://:hush@127.0.0.1:1/0").values()
    assert found.status == "fail" and found.todo and "hush" not in found.detail


def test_gpus_are_named_and_none_is_no_failure(tmp_path: Path) -> None:
    said = "NVIDIA H200, 143771 MiB, 580.65.06"
    assert by_check(list(look_at_machine(tmp_path, lambda: said)))["gpu"].detail == said
    assert by_check(list(look_at_machine(tmp_path, lambda: None)))["gpu"].status == "skip"


def test_a_system_that_filters_no_calls_is_a_warning(tmp_path: Path) -> None:
    there, not_there = (
        by_check(list(look_at_machine(tmp_path, lambda: None, is_there)))["syscall-filter"]
        for is_there in (lambda: True, lambda: False)
    )
    assert (there.status, not_there.status) == ("ok", "warn") and not_there.todo


def test_warnings_leave_it_well_and_a_failure_does_not() -> None:
    findings = [Finding("a", "ok", ""), Finding("b", "warn", "", "x"), Finding("c", "skip", "")]
    assert is_well(findings)
    assert not is_well([*findings, Finding("d", "fail", "", "x")])


def test_a_local_tenfold_is_found_by_its_folder_while_it_runs(tmp_path: Path) -> None:
    told = {"TENFOLD_REDIS_URL": "redis://127.0.0.1:6379/0", "HOME": "/nowhere"}
    with subprocess.Popen(["/bin/sleep", "60"], env=told) as process:
        (tmp_path / "run").mkdir()
        pid_file = tmp_path / "run" / "api.pid"
        pid_file.write_text(f"{process.pid} {process_started_at(process.pid)}\n")
        assert environment_of_local(tmp_path) == {"TENFOLD_REDIS_URL": told["TENFOLD_REDIS_URL"]}
        pid_file.write_text(f"{process.pid} 1\n")  # the number is somebody else's by now
        assert environment_of_local(tmp_path) == {}
        process.kill()
    assert environment_of_local(tmp_path / "elsewhere") == {}


def test_the_command_says_what_is_missing_as_json_and_fails(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "doctor", "--json"],
        cwd=CHECKOUT,
        env={"TENFOLD_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    failed = {each["check"] for each in report["findings"] if each["status"] == "fail"}
    assert failed >= {"postgres", "redis", "model", "adapter-store", "key-pepper"}
    assert report["is_well"] is False
    assert all(each["todo"] for each in report["findings"] if each["status"] in ("warn", "fail"))
