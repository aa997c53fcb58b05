"""Runs a bench's sections in a worker process and keeps each to its time.

Knows nothing of torch, CUDA or what a section does. A section that overruns is cut by ending its
worker; what it had reported stays. A worker that dies (a kernel that reads out of bounds takes
its process's CUDA context along) costs one section: the next gets a new worker. Invariant: every
section ends in exactly one `Outcome`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from queue import Empty, Queue
from typing import Any

from bench.gpu_records import Record


@dataclass(frozen=True, slots=True)
class Section:
    """`entry`: "module:function", called with the worker's `Bench`. Budgets in seconds.

    `alone`: on a GPU it gets a worker of its own, because it takes all the memory there is.
    """

    name: str
    entry: str
    budget_s: float
    dry_budget_s: float
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a section ended: `done`, `cut`, `failed` or `skipped`, and what it reported."""

    section: str
    status: str
    seconds: float
    detail: str
    records: list[Record] = field(default_factory=list)


class Worker:
    """One child process and the messages that it writes to a pipe of its own."""

    def __init__(self, sections: Sequence[Section], *, dry: bool, facts: Mapping[str, Any]) -> None:
        read_end, write_end = os.pipe()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if dry:
            # NOTE: Triton decides while it is imported whether it interprets.
            environment["TRITON_INTERPRET"] = "1"
        plan = {"sections": [asdict(each) for each in sections], "dry": dry, "facts": dict(facts)}
        command = [sys.executable, "-m", "bench.gpu_worker", str(write_end), json.dumps(plan)]
        self._process = subprocess.Popen(
            command, pass_fds=[write_end], env=environment, stdout=sys.stderr
        )
        os.close(write_end)
        self._messages: Queue[dict[str, Any] | None] = Queue()
        threading.Thread(target=self._read, args=(read_end,), daemon=True).start()

    def next_message(self, deadline: float) -> dict[str, Any] | None:
        """None once the worker has ended. Raises Empty at `deadline` (monotonic seconds)."""
        return self._messages.get(timeout=max(0.0, deadline - time.monotonic()))

    def end(self) -> int:
        """End the process if it still runs; its exit code."""
        self._process.kill()
        return self._process.wait()

    def wait(self) -> int:
        return self._process.wait()

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor) as pipe:
            for line in pipe:
                self._messages.put(json.loads(line))
        self._messages.put(None)


class Supervisor:
    """Runs `sections` in order, all of them within `total_s`."""

    def __init__(
        self, sections: Sequence[Section], *, dry: bool, total_s: float, facts: Mapping[str, Any]
    ) -> None:
        self._pending = list(sections)
        self._dry = dry
        self._total_s = total_s
        self.facts = dict(facts)
        """What is known beforehand, and what sections find out that later ones need."""

    def run(self) -> Iterator[Outcome]:
        """Each section's outcome, as soon as it is known."""
        ends_at = time.monotonic() + self._total_s
        while self._pending:
            if time.monotonic() >= ends_at:
                section = self._pending.pop(0)
                detail = f"the {self._total_s:.0f} s of the whole run were used up"
                yield Outcome(section.name, "skipped", 0.0, detail)
                continue
            together = self._next_together()
            worker = Worker(together, dry=self._dry, facts=self.facts)
            try:
                yield from self._follow(worker, together, ends_at)
            finally:
                worker.end()

    def _next_together(self) -> list[Section]:
        """The sections at the head of the line that one worker runs."""
        if self._dry:
            return list(self._pending)
        if self._pending[0].alone:
            return self._pending[:1]
        return list(takewhile(lambda section: not section.alone, self._pending))

    def _follow(
        self, worker: Worker, sections: Sequence[Section], ends_at: float
    ) -> Iterator[Outcome]:
        """Outcomes until the worker is through, or has to be given up."""
        for section in sections:
            outcome = self._watch(worker, section, ends_at)
            self._pending.pop(0)
            yield outcome
            if outcome.status != "done":
                return

    def _watch(self, worker: Worker, section: Section, ends_at: float) -> Outcome:
        budget_s = section.dry_budget_s if self._dry else section.budget_s
        began_at = time.monotonic()
        deadline = min(began_at + budget_s, ends_at)
        records: list[Record] = []

        def outcome(status: str, detail: str) -> Outcome:
            seconds = time.monotonic() - began_at
            return Outcome(section.name, status, round(seconds, 1), detail, records)

        while True:
            try:
                message = worker.next_message(deadline)
            except Empty:
                allowed = deadline - began_at
                return outcome("cut", f"cut after its {allowed:.1f} s; what it had is shown")
            if message is None:
                return outcome("failed", f"its process ended with code {worker.wait()}")
            match message["event"]:
                case "record":
                    records.append(Record(**message["record"]))
                case "fact":
                    self.facts[message["name"]] = message["value"]
                case "failed":
                    return outcome("failed", message["detail"])
                case "done":
                    return outcome("done", "")
