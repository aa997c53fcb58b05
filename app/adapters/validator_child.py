"""Checks one adapter in a process that has just been made for it.

Knows nothing of who asks or of how the process was made. Invariants: no byte of the tenant's is
read before the process is confined (`app.adapters.confinement`); whatever the bytes are, the worst
that happens is that this process ends without an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from app.adapters.confinement import confine, peak_bytes
from app.adapters.manifest_summary import summarise
from app.adapters.validation_messages import DEADLINE_PER_CPU_S, Answer, Task
from lora.base_copies import check_against_base
from lora.base_files import BaseFiles
from lora.findings import Finding
from lora.manifest import AdapterManifest, ManifestError, read_manifest
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from lora.values import check_values

ValueCheck = Callable[[Path, AdapterManifest, BaseFiles | None], list[Finding]]


def check_numbers(
    weights: Path, manifest: AdapterManifest, base_files: BaseFiles | None
) -> list[Finding]:
    """What every number of an adapter says, beside the base's own where they are at hand."""
    findings = check_values(weights, manifest)
    if base_files is not None:
        findings += check_against_base(weights, manifest, base_files)
    return findings


def work(data: bytes, check: ValueCheck) -> bytes:
    """Do the `Task` in `data`; its `Answer`. From here on this process can do little else.

    Raises MemoryError, and OSError where a file cannot be read.
    """
    task = msgspec.json.decode(data, type=Task)
    config, weights = (f"{task.folder}/{name}" for name in (CONFIG_FILE, WEIGHTS_FILE))
    base_files: BaseFiles | None = None
    mapped: set[str] = set()
    if task.reads_values:
        mapped.add(weights)
        if task.model is not None:
            base_files = BaseFiles.from_folder(Path(task.model), task.base)
            mapped |= {str(path) for path, _ in base_files.spans.values()}
    is_filtered = confine(
        {config, weights, *mapped},
        memory_bytes=task.memory_bytes + sum(Path(path).stat().st_size for path in mapped),
        cpu_s=task.cpu_s,
        deadline_s=DEADLINE_PER_CPU_S * task.cpu_s,
    )
    answer = _check(task, Path(config), Path(weights), base_files, check)
    return msgspec.json.encode(msgspec.structs.replace(answer, is_filtered=is_filtered))


def _check(
    task: Task, config: Path, weights: Path, base_files: BaseFiles | None, check: ValueCheck
) -> Answer:
    try:
        manifest = read_manifest(
            config.read_bytes(),
            weights,
            task.base,
            known_bases=task.known_bases,
            limits=task.limits,
        )
    except ManifestError as error:
        return Answer(findings=error.findings, peak_bytes=peak_bytes())
    findings = list(manifest.warnings)
    if task.reads_values:
        findings += check(weights, manifest, base_files)
    return Answer(findings=tuple(findings), summary=summarise(manifest), peak_bytes=peak_bytes())
