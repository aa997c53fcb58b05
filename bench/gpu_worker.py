"""The process in which `bench.gpu`'s sections run, and what a section is given.

Knows nothing of torch; a section imports what it needs. Started by `bench.gpu_supervisor` as
`python -m bench.gpu_worker PIPE PLAN`; what it finds out goes to the pipe, one JSON a line.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

from bench.gpu_records import TIME_UNITS, Record, goal_record


class Bench:
    """What a section knows (`dry`, `facts`) and whom it tells."""

    def __init__(self, pipe: IO[str], *, dry: bool, facts: Mapping[str, Any]) -> None:
        self._pipe = pipe
        self._section = ""
        self.dry = dry
        self.facts = dict(facts)

    def begin(self, section: str) -> None:
        self._section = section

    def report(
        self,
        what: str,
        unit: str,
        measured: float | None,
        *,
        predicted: float | None = None,
        floor_share: float | None = None,
        passed: bool | None = None,
        note: str = "",
    ) -> None:
        """Tell one figure; `measured` None: there is none to tell."""
        self._tell_record(
            Record(self._section, what, unit, measured, predicted, floor_share, None, passed, note)
        )

    def report_goal(self, key: str, measured: float | None, note: str = "") -> None:
        self._tell_record(goal_record(self._section, key, measured, note))

    def tell_fact(self, name: str, value: Any) -> None:
        """Let later sections, and the result file, know `value` (what JSON can hold)."""
        self.facts[name] = value
        self._send({"event": "fact", "name": name, "value": value})

    def done(self) -> None:
        self._send({"event": "done"})

    def failed(self, detail: str) -> None:
        self._send({"event": "failed", "detail": detail})

    def _tell_record(self, record: Record) -> None:
        dry_time = self.dry and record.unit in TIME_UNITS and record.measured is not None
        assert not dry_time, f"{record.what}: a dry run has no {record.unit} to tell"
        self._send({"event": "record", "record": asdict(record)})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._pipe.write(json.dumps(message) + "\n")
        self._pipe.flush()


def main(descriptor: int, plan: Mapping[str, Any]) -> int:
    """Run the plan's sections until one fails: after that a CUDA context cannot be trusted."""
    with os.fdopen(descriptor, "w") as pipe:
        bench = Bench(pipe, dry=plan["dry"], facts=plan["facts"])
        for section in plan["sections"]:
            bench.begin(section["name"])
            module, function = section["entry"].split(":")
            try:
                getattr(importlib.import_module(module), function)(bench)
            except Exception as error:  # whatever a section does wrong is its outcome
                traceback.print_exc()
                bench.failed(f"{type(error).__name__}: {error}"[:400])
                return 1
            bench.done()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), json.loads(sys.argv[2])))
