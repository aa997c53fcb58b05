"""`python -m app.adapters.validator_child`: checks one adapter in a process of its own, and ends.

Knows nothing of who asks. Reads a `Task` from stdin, writes an `Answer` to stdout. Invariants: no
byte of the tenant's is read before the process is confined (`app.adapters.confinement`); neither
torch nor NumPy is loaded; whatever the bytes are, the worst that happens is that this process ends
without an answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from app.adapters.confinement import confine, peak_bytes
from app.adapters.manifest_summary import summarise
from app.adapters.validation_messages import Answer, Task
from lora.base_files import BaseFiles
from lora.findings import Finding
from lora.manifest import AdapterManifest, ManifestError, read_manifest
from lora.store import CONFIG_FILE, WEIGHTS_FILE

OUT_OF_MEMORY = 9  # exit status
DEADLINE_PER_CPU_S = 4  # wall time for each second of processor time: the machine may be busy

ValueCheck = Callable[[Path, AdapterManifest, BaseFiles | None], list[Finding]]


def main() -> None:
    run(None)


def run(check_values: ValueCheck | None) -> None:
    """Do the task on stdin and end this process. Without `check_values` no number is read."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    config, weights = (f"{task.folder}/{name}" for name in (CONFIG_FILE, WEIGHTS_FILE))
    base_files: BaseFiles | None = None
    mapped: list[str] = []
    if check_values is not None:
        mapped.append(weights)
        if task.model is not None:
            base_files = BaseFiles.from_folder(Path(task.model), task.base)
            mapped += {str(path) for path, _ in base_files.spans.values()}
    confine(
        {config, weights, *mapped},
        memory_bytes=task.memory_bytes + sum(Path(path).stat().st_size for path in mapped),
        cpu_s=task.cpu_s,
        deadline_s=DEADLINE_PER_CPU_S * task.cpu_s,
    )
    try:
        answer = msgspec.json.encode(_check(task, Path(config), Path(weights), base_files, check_values))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    os._exit(0)  # what runs at a regular exit may want what is forbidden by now


def _check(
    task: Task,
    config: Path,
    weights: Path,
    base_files: BaseFiles | None,
    check_values: ValueCheck | None,
) -> Answer:
    try:
        manifest = read_manifest(config.read_bytes(), weights, task.base, limits=task.limits)
    except ManifestError as error:
        return Answer(findings=error.findings, peak_bytes=peak_bytes())
    findings = list(manifest.warnings)
    if check_values is not None:
        findings += check_values(weights, manifest, base_files)
    return Answer(findings=tuple(findings), summary=summarise(manifest), peak_bytes=peak_bytes())


if __name__ == "__main__":
    main()
