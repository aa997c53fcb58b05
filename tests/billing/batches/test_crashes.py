"""Workers and engines are killed amid a batch: every line is answered, and billed, once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from app.batches.answers import line_request_id
from app.ids import hex_of
from app.settings import Settings
from tests.app.requests.conftest import Rows
from tests.billing.batches.inputs import Submitter, chat_line
from tests.builders.envelope_keys import ENVELOPE_KEYS
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import eventually
from tests.fixtures.processes import running
from tests.fixtures.servers import TestDatabase

NUM_CRASHES = {"few": 4, "many": 6, "soak": 60}[os.environ.get("TEST_FAULTS", "few")]
LINES_A_CRASH = 24
MAX_TOKENS = 20
STEP_S = 0.02
OWN = {
    "TENFOLD_ENVELOPE_KEYS": ENVELOPE_KEYS,
    "TENFOLD_API_LOST_AFTER_S": "1",
    "TENFOLD_SWEEP_INTERVAL_S": "0.2",
    "TENFOLD_BATCH_CONCURRENCY": "8",
}


class Workers:
    """One worker process after the other."""

    def __init__(self, settings: Settings, database: TestDatabase, folder: Path) -> None:
        assert settings.file_store is not None
        own = {"TENFOLD_DATABASE_URL": database.worker_url}
        self._settings = settings
        self._extra = OWN | own | {"TENFOLD_FILE_STORE": settings.file_store}
        self._folder = folder
        self._num = 0
        self._life = ExitStack()

    def start(self) -> None:
        self._num += 1
        log = self._folder / f"worker-{self._num}.log"
        self._process = self._life.enter_context(
            running("app.worker", self._settings, log, self._extra)
        )

    def crash(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._life.close()
        self.start()

    def close(self) -> None:
        self._life.close()


class Engines:
    """Two at a time."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self.all: list[StubEngine] = []
        for _ in range(2):
            self._start()

    @property
    def num_leases(self) -> int:
        return sum(len(engine.requests) for engine in self.all)

    def crash(self) -> None:
        victim = max(self.all[-2:], key=lambda engine: engine.num_running)
        victim.kill()
        self.all.remove(victim)
        self.all.insert(0, victim)
        self._start()

    def close(self) -> None:
        for engine in self.all[-2:]:
            engine.stop()

    def _start(self) -> None:
        engine = StubEngine(self._redis_url, engine_id=f"stub-{len(self.all)}", step_s=STEP_S)
        engine.start()
        self.all.append(engine)


@pytest.fixture
def engines(redis_url: str) -> Iterator[Engines]:
    opened = Engines(redis_url)
    yield opened
    opened.close()


@pytest.fixture
def workers(settings: Settings, database: TestDatabase, tmp_path: Path) -> Iterator[Workers]:
    opened = Workers(settings, database, tmp_path)
    opened.start()
    yield opened
    opened.close()


@pytest.mark.timeout(0)
async def test_every_line_is_answered_and_billed_once_through_crashes(
    submitter: Submitter,
    engines: Engines,
    workers: Workers,
    rows: Rows,
    record_property: Callable[[str, object], None],
) -> None:
    num_lines = LINES_A_CRASH * (NUM_CRASHES + 1)
    lines = [
        chat_line(f"line-{i}", f"say {i} " + "x" * (i % 40), max_tokens=MAX_TOKENS)
        for i in range(1, num_lines + 1)
    ]
    batch = await submitter.submit(lines)
    for crash in range(1, NUM_CRASHES + 1):
        await eventually(
            partial(_has_answered, submitter, batch["id"], crash * LINES_A_CRASH),
            timeout_s=120,
        )
        (engines if crash % 3 == 0 else workers).crash()
    done = await submitter.ended(batch["id"], timeout_s=180)

    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": num_lines, "completed": num_lines, "failed": 0}
    output = await submitter.lines_of(done["output_file_id"])  # each is there once
    assert list(output) == [line["custom_id"] for line in lines]

    async def all_ended() -> bool:
        return all(row["state"] == "ended" for row in await rows.requests())

    await eventually(all_ended, timeout_s=30)
    accepted, finals = await rows.requests(), await rows.finals()
    billed = {row["request_id"]: row["num_generated_tokens"] for row in finals}
    told = {
        f"{hex_of(line_request_id(batch['id'], i))}-0": _tokens_of(output[f"line-{i}"])
        for i in range(1, num_lines + 1)
    }
    difference = sum(abs(billed.get(name, 0) - tokens) for name, tokens in told.items())
    found = {"crashes": NUM_CRASHES, "ledger difference": difference, "batch lines": num_lines}
    record_property("billing", json.dumps(found))
    assert billed == told
    assert sum(billed.values()) == done["usage"]["output_tokens"] > num_lines
    assert len(accepted) == num_lines
    assert {row["finish_reason"] for row in finals} <= {"length", "stop"}
    # Control: the crashes did come in the middle of lines, which then ran more than once.
    assert engines.num_leases > num_lines


async def _has_answered(submitter: Submitter, batch_id: str, least: int) -> bool:
    counts = (await submitter.get(batch_id))["request_counts"]
    return bool(counts["completed"] >= least)


def _tokens_of(line: dict[str, object]) -> int:
    response = line["response"]
    assert isinstance(response, dict)
    return int(response["body"]["usage"]["completion_tokens"])
